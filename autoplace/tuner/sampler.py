"""Optuna's samplers by name, and the search space as Optuna's distributions."""

import importlib.util
from dataclasses import dataclass

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, IntDistribution

from autoplace.errors import AutoplaceError, did_you_mean
from autoplace.placement.space import Parameter, SearchSpace

SAMPLERS = ("tpe", "random", "nsga2", "gp")


@dataclass(frozen=True)
class SamplerSettings:
    """Which sampler, and what it is told."""

    name: str = "tpe"
    seed: int = 0
    n_startup_trials: int = 8
    population_size: int = 16


def make_sampler(settings: SamplerSettings, *, num_trials: int) -> optuna.samplers.BaseSampler:
    """A sampler for the next trial of a study that has `num_trials`.

    It is made anew for each trial, seeded by the seed and the number of trials, so that a study
    that was interrupted goes on just as it would have without.
    """
    seed = settings.seed * 1_000_003 + num_trials
    match settings.name:
        case "tpe":
            return optuna.samplers.TPESampler(
                n_startup_trials=settings.n_startup_trials, constant_liar=True, seed=seed
            )
        case "random":
            return optuna.samplers.RandomSampler(seed=seed)
        case "nsga2":
            return optuna.samplers.NSGAIISampler(
                population_size=settings.population_size, seed=seed
            )
        case "gp":
            if importlib.util.find_spec("scipy") is None:
                raise AutoplaceError("sampler=gp needs scipy, which is not installed")
            return optuna.samplers.GPSampler(n_startup_trials=settings.n_startup_trials, seed=seed)
    raise AutoplaceError(
        f"expected a sampler, got {settings.name!r}{did_you_mean(settings.name, SAMPLERS)}"
    )


def distributions(space: SearchSpace) -> dict[str, BaseDistribution]:
    return {parameter.name: _distribution(parameter) for parameter in space.parameters}


def _distribution(parameter: Parameter) -> BaseDistribution:
    if parameter.kind == "int":
        return IntDistribution(parameter.low, parameter.high)
    return CategoricalDistribution(parameter.choices)

"""`report`: writes a study that is there as a page of plots and tables."""

from autoplace.commands.output import answer_console, print_json
from autoplace.commands.tune import problem_of
from autoplace.config import ReportConfig
from autoplace.tuner.search import SearchSettings
from autoplace.tuner.session import Session, report
from autoplace.tuner.table import print_summary, summary_json


def run(config: ReportConfig) -> int:
    """0 if the study has a measured placement, 1 if it has none."""
    session = Session(
        storage_path=config.storage.path,
        busy_timeout_s=config.storage.busy_timeout_s,
        study_dir=config.study_dir,
        search=SearchSettings(max_kl=config.max_kl),
    )
    result = report(problem_of(config, config.kv_type), session)
    if config.output == "json":
        print_json("report", summary_json(result.summary, result.published))
    else:
        print_summary(result.summary, result.published, answer_console())
    return 0 if result.summary.best is not None else 1

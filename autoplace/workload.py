"""What is asked of a model: the lengths that a placement is measured and chosen for."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Workload:
    """One sequence: a prompt that is prefilled, then tokens that are decoded one by one."""

    name: str
    prompt_tokens: int
    output_tokens: int
    context_tokens: int
    """Positions that the KV cache is made for; at least prompt and output together."""

    def request_s(self, *, prefill_latency_s: float, decode_tok_per_s: float) -> float:
        """Seconds for one request of this workload: the number that the best placement minimises.

        The first output token comes out of the prefill; the others are decoded.
        """
        return prefill_latency_s + (self.output_tokens - 1) / decode_tok_per_s

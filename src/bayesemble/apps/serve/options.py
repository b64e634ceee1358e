"""What a service is asked to be: where it listens, what it allows, and when it answers."""

from __future__ import annotations

from dataclasses import dataclass

from bayesemble.core.settings import require, setting, validate


@dataclass(frozen=True)
class Options:
    """Settings of `bayesemble serve`."""

    host: str = setting("127.0.0.1", "address to listen at")
    port: int = setting(8000, "port to listen at", within="[0, 65535]")
    level: float | None = setting(
        None, "probability of intervals and sets; None is that of the calibration, or 0.9", within="(0, 1)"
    )
    max_risk: float | None = setting(None, "largest share of answers that may be wrong; None never abstains")
    tolerance: float | None = setting(None, "error from which the answer of a number counts as wrong")
    token: str | None = setting(None, "bearer token that requests have to bring; None asks for none")
    max_rows: int = setting(1_000, "rows of a request, at most", least=1)
    max_bytes: int = setting(2_000_000, "bytes of a request, at most", least=1)
    queue_rows: int = setting(4_000, "rows that may wait for their turn; beyond, requests are sent away", least=1)
    seconds: float = setting(10.0, "seconds that a request may take", above=0)
    linger: float = setting(0.0, "seconds that a batch waits for further rows", within="[0, 1]")
    reload_seconds: float = setting(2.0, "seconds between looks at the run folders; 0 never looks", least=0)

    def __post_init__(self) -> None:
        validate(self)
        require(self.token is None or self.token.strip() != "", "the token is empty; leave it out, or give one")
        require(
            self.token is None or (self.token.isascii() and self.token.isprintable() and " " not in self.token),
            "the token is made of printable ASCII characters without spaces",
        )
        require(
            self.tolerance is None or 0 < self.tolerance < float("inf"),
            f"tolerance is a number above 0, got {self.tolerance}",
        )
        require(
            self.tolerance is None or self.max_risk is not None,
            "tolerance says from which error on an answer counts as wrong, for max_risk: say that too, or leave it out",
        )
        require(
            self.max_risk is None or 0 < self.max_risk < 1, f"max_risk is a share between 0 and 1, got {self.max_risk}"
        )
        require(
            self.queue_rows >= self.max_rows,
            f"queue_rows ({self.queue_rows}) must be at least max_rows ({self.max_rows}), "
            "or a request that is allowed could never be taken",
        )

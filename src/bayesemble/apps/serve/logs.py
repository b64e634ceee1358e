"""Logs of a service: one JSON object in each line of standard error."""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime
from typing import Any

logger = logging.getLogger("bayesemble.serve")
FIELDS = "fields"


class JsonLines(logging.Formatter):
    """A record as one line of JSON: time, level, event, and whatever fields came with it."""

    def format(self, record: logging.LogRecord) -> str:
        """One line; a traceback is a field."""
        moment = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        line: dict[str, Any] = {"time": moment, "level": record.levelname.lower(), "event": record.getMessage()}
        line |= getattr(record, FIELDS, {})
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


def tell(event: str, level: int = logging.INFO, **fields: Any) -> None:
    """Log an event with its fields."""
    if logger.isEnabledFor(level):
        logger.log(level, event, extra={FIELDS: fields})


def set_up(requests: bool) -> None:
    """Send the logs of the service, and of what carries it, to standard error: each request, or trouble alone."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonLines())
    for name in ("bayesemble", "bayesemble.serve", "uvicorn", "uvicorn.error"):
        one = logging.getLogger(name)
        one.handlers, one.propagate = [handler], False
        one.setLevel(logging.INFO if requests or name != "bayesemble.serve" else logging.WARNING)

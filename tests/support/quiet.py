"""What all small trainings have in common: on processors, without files and reports."""

from typing import Any

QUIET: dict[str, Any] = {
    "save_strategy": "no", "report_to": "none", "disable_tqdm": True,
    "use_cpu": True, "bf16": False, "gradient_checkpointing": False,
}  # fmt: skip

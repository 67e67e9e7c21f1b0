"""Makes rollouts. For now the demo's: a real GRPO training against a real OpenEnv server, small enough for a laptop."""

__all__: list[str] = []

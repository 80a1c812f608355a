"""Kinds of analysis that read several runs or checkpoints."""

MULTI_RUN_KINDS = ("probe", "svcca")

"""Written by the build."""

BUILT_FOR_TORCH: str

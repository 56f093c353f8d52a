"""sctom on MLX: the parts that need a framework, written again without torch."""

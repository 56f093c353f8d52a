"""MLX losses against the torch losses: generated inputs, values and gradients."""

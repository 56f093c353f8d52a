"""Iterative RLHF in rounds: compare answers, learn rewards, sample, select, fine-tune, PPO."""

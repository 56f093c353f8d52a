"""What rewards do before a run: on probes, on responses given or sampled, on golden samples."""

"""Tasks: for each, how a row becomes a prompt, how a completion is judged, and what is reported."""

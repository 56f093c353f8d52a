"""Speed and memory of sctom beside TRL and beside the limits of the machine; see README.md."""

"""What the sampler saw of the machine, over the time of a run; all of them over the same axis, which zooms as one."""

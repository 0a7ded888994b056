"""What the sampler asks of this machine once per second, one part of it per file."""

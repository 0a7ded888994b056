"""The data loader of a training watched from inside: what its time goes to, here and in its workers."""

"""One rank of several: its rehearsal rewritten for the way in which the model is spread over them."""

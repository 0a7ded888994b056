"""One section of the page per file: what its template is given."""

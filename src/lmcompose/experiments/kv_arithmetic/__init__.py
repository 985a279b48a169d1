"""Key-value arithmetic: the CALM paper's section 4.1, from nothing, with no download."""

//! MGS target (its owner fills this in).

//! OST target (its owner fills this in).

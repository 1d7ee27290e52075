//! LNet in user space: NIDs, network interfaces, peers, match lists, socklnd (TCP) and memlnd (in process).

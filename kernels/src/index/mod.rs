//! Operators that choose: indices out, and values only on request.

pub mod topk_select;

//! Build, check, lower, emit: from a kernel definition to text for a target, in one call.

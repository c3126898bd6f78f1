//! Times on the command line: `500ms`, `30s`, `10m`, `1h`.

use crate::failure::Failure;
use std::time::Duration;

/// Units, the longer names first.
const UNITS: [(&str, f64); 4] = [("ms", 1e-3), ("s", 1.0), ("m", 60.0), ("h", 3600.0)];

/// The time an option names.
///
/// # Errors
/// Text that is no number with a unit, and times below 0.
pub fn parse(option: &str, text: &str) -> Result<Duration, Failure> {
    let number = UNITS.iter().find_map(|(unit, seconds)| Some(text.strip_suffix(unit)?.parse::<f64>().ok()? * seconds));
    match number.filter(|n| n.is_finite() && *n >= 0.0) {
        Some(n) => Ok(Duration::from_secs_f64(n.min(1e9))),
        None => {
            let next = format!("write {option} 10m");
            Err(Failure::usage(option, "a time such as 500ms, 30s, 10m or 1h", format!("`{text}`"), &next))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_a_unit() {
        assert_eq!(parse("--judge", "30s").ok(), Some(Duration::from_secs(30)));
        assert_eq!(parse("--judge", "250ms").ok(), Some(Duration::from_millis(250)));
        assert_eq!(parse("--judge", "1.5m").ok(), Some(Duration::from_secs(90)));
        for wrong in ["", "10", "m", "-1s", "10d", "infs", "1µ"] {
            assert!(parse("--judge", wrong).is_err(), "{wrong}");
        }
    }
}

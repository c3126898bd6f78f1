//! Timing plans. Input sets rotate so that every call finds its inputs cold; on a GPU the calls are captured in one graph
//! and timed by events, elsewhere by the wall clock.
//!
//! A measurement compares only with others of the same machine. Nothing here judges results; check them first.

use crate::device::{Device, Graph, Stream};
use crate::error::{Error, Result};
use kiln_codegen::abi::{Launcher, Plan};
use std::time::{Duration, Instant};

/// Bytes that independent input sets must exceed together: four times the largest second-level cache of the GPUs we
/// know (60 MiB).
pub const ROTATE_BYTES: usize = (4 * 60) << 20;
/// Most sets that are worth their memory.
pub const SETS_MAX: usize = 24;

/// Number of independent input sets for a call that touches `bytes`.
pub fn sets_for(bytes: usize) -> usize {
    (ROTATE_BYTES / bytes.max(1) + 1).clamp(1, SETS_MAX)
}

/// Which of a card's clock rates a measurement sees.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// Short graphs after an idle pause: the rate before the power limit lowers the clock.
    #[default]
    Burst,
    /// Long graphs without a pause: the power-limited rate.
    Sustained,
}

impl Mode {
    /// Name in records.
    pub const fn name(self) -> &'static str {
        match self {
            Mode::Burst => "burst",
            Mode::Sustained => "sustained",
        }
    }
}

/// How to measure.
#[derive(Clone, Debug)]
pub struct MeasureOptions {
    /// Clock rate to see.
    pub mode: Mode,
    /// Timed replays; the median counts.
    pub replays: usize,
    /// Most calls of a replay.
    pub calls_max: usize,
}

impl Default for MeasureOptions {
    fn default() -> Self {
        MeasureOptions { mode: Mode::Burst, replays: 7, calls_max: 400 }
    }
}

impl MeasureOptions {
    /// Wanted length of a replay in microseconds.
    fn replay_us(&self) -> f64 {
        match self.mode {
            Mode::Burst => 6_000.0,
            Mode::Sustained => 40_000.0,
        }
    }
    fn pause(&self) -> Duration {
        match self.mode {
            Mode::Burst => Duration::from_millis(200),
            Mode::Sustained => Duration::ZERO,
        }
    }
}

/// Time of one call.
#[derive(Clone, Debug, PartialEq)]
pub struct Measurement {
    /// Median over the replays.
    pub median_us: f64,
    /// Fastest replay.
    pub min_us: f64,
    /// 95th percentile over the replays.
    pub p95_us: f64,
    /// Calls of a replay.
    pub calls: usize,
    /// Input sets they rotate over.
    pub sets: usize,
    /// `graph` or `wall`.
    pub timer: &'static str,
    /// `burst` or `sustained`.
    pub mode: &'static str,
}

/// Times plans that do the same work on independent inputs. Everything a plan launches counts.
///
/// # Errors
/// No plan, or whatever launching one gives.
pub fn time(device: &Device, sets: &[Plan], options: &MeasureOptions) -> Result<Measurement> {
    if sets.is_empty() || sets.iter().any(|p| p.steps.is_empty()) {
        return Err(Error::Unsupported {
            what: "measuring".into(),
            expected: "at least one plan, each with a launch".into(),
            got: format!("{} plans", sets.len()),
        });
    }
    let stream = device.stream()?;
    for plan in sets {
        stream.prepare(plan)?;
    }
    time_calls(&stream, sets.len(), &|s, set| s.run(&sets[set]), options)
}

/// As [`time`], for calls of any kind: `call` enqueues one for the input set of a number below `sets`. It is prepared:
/// nothing is loaded or allocated by it.
///
/// # Errors
/// No set, and whatever a call gives.
pub fn time_calls(
    stream: &Stream,
    sets: usize,
    call: &dyn Fn(&Stream, usize) -> Result<()>,
    options: &MeasureOptions,
) -> Result<Measurement> {
    if sets == 0 {
        return Err(Error::Unsupported {
            what: "measuring".into(),
            expected: "at least one input set".into(),
            got: "none".into(),
        });
    }
    // The first call warms; the second round estimates.
    call(stream, 0)?;
    stream.synchronize()?;
    let probes = sets.min(4);
    let start = stream.record()?;
    (0..probes).try_for_each(|set| call(stream, set))?;
    stream.synchronize()?;
    let one_us = start.elapsed_us(&stream.record()?)?.max(0.1) / probes as f64;
    let calls = calls_for(one_us, options.replay_us(), options.calls_max, sets);
    let run = |from: usize, n: usize| -> Result<()> { (from..from + n).try_for_each(|i| call(stream, i % sets)) };
    if let Some(graph) = stream.capture(|_| run(0, calls))? {
        let times = replays(stream, &graph, options)?;
        return Ok(summary(times, calls, sets, "graph", options));
    }
    // Without graphs calls are synchronous and slow; whole rotations would take minutes.
    let calls = calls_for(one_us, options.replay_us(), options.calls_max, 1);
    let mut times = vec![];
    for replay in 0..options.replays.max(1) {
        let start = Instant::now();
        run(replay * calls, calls)?;
        stream.synchronize()?;
        times.push(start.elapsed().as_secs_f64() * 1e6);
    }
    Ok(summary(times, calls, sets, "wall", options))
}

fn replays(stream: &Stream, graph: &Graph, options: &MeasureOptions) -> Result<Vec<f64>> {
    graph.launch()?;
    stream.synchronize()?;
    std::thread::sleep(options.pause());
    let mut times = vec![];
    for _ in 0..options.replays.max(1) {
        let start = stream.record()?;
        graph.launch()?;
        let end = stream.record()?;
        times.push(start.elapsed_us(&end)?);
    }
    stream.synchronize()?;
    Ok(times)
}

/// Calls of a replay: as many as fill it, at most `max`, and whole rotations of the sets.
fn calls_for(one_us: f64, replay_us: f64, max: usize, sets: usize) -> usize {
    let want = ((replay_us / one_us).round() as usize).clamp(1, max.max(1));
    if want <= sets { sets } else { want / sets * sets }
}

fn summary(mut times: Vec<f64>, calls: usize, sets: usize, timer: &'static str, o: &MeasureOptions) -> Measurement {
    times.sort_by(f64::total_cmp);
    let at = |q: f64| {
        let rank = (q * times.len() as f64).ceil() as usize;
        times[rank.clamp(1, times.len()) - 1] / calls as f64
    };
    let n = times.len();
    let median_us = if n % 2 == 1 { at(0.5) } else { (times[n / 2 - 1] + times[n / 2]) / 2.0 / calls as f64 };
    Measurement { median_us, min_us: at(0.0), p95_us: at(0.95), calls, sets, timer, mode: o.mode.name() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rotation() {
        assert_eq!(sets_for(1), SETS_MAX);
        assert_eq!(sets_for(60 << 20), 5, "four sets would equal the bound, not exceed it");
        assert_eq!(sets_for(1 << 40), 1);
    }

    #[test]
    fn calls() {
        assert_eq!(calls_for(10.0, 6000.0, 400, 24), 384, "400 rounded down to whole rotations");
        assert_eq!(calls_for(100.0, 6000.0, 400, 7), 56);
        assert_eq!(calls_for(1e6, 6000.0, 400, 5), 5, "one rotation at least");
    }

    #[test]
    fn statistics() {
        let m = summary(vec![70.0, 10.0, 20.0, 30.0, 40.0, 50.0, 60.0], 10, 2, "graph", &MeasureOptions::default());
        assert_eq!((m.min_us, m.median_us, m.p95_us), (1.0, 4.0, 7.0));
    }

    #[test]
    fn nothing_to_measure() {
        let cpu = crate::open("cpu").expect("always there");
        let e = time(&cpu, &[], &MeasureOptions::default()).expect_err("no plan");
        assert_eq!(e.exit_code(), 2);
    }
}

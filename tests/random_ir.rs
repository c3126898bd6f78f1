//! Random programs of plain IR: the tile VM, the simulated chip and a GPU give the same bits.
//!
//! 1,000 programs by default, 100,000 with `SLOW=1`, any number with `KILN_PROGRAMS`, from seed `KILN_SEED` on (alone, it
//! names one program). Programs are compiled many at a time. A program that fails is shrunk by leaving out steps, and
//! printed with what is needed to run it again. Programs for GPUs hold only operations whose bits silicon promises:
//! no approximate functions, no matrix units. What was found once is kept in `random/found`.
//!
//! The built test needs neither cargo nor the repository: `KILN_DEVICE=cuda:0 random_ir-<hash>` runs on a GPU machine.

#![allow(clippy::print_stdout, reason = "counts and skips are named in the test's output")]

#[path = "random/build.rs"]
mod build;
#[path = "random/expr.rs"]
mod expr;
#[path = "random/found.rs"]
mod found;
#[path = "random/run.rs"]
mod run;

use build::Program;
use kiln_runtime::Settings;
use run::{Outcome, Runner};
use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

/// Programs of one compilation.
const BATCH: usize = 50;
/// Failures that are shrunk and printed; the rest is counted.
const REPORTED: usize = 5;

fn number(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name}={text}: expected a number")))
}

/// First seed and number of programs.
fn range() -> (u64, u64) {
    let slow = std::env::var("SLOW").is_ok_and(|v| v == "1");
    let seed = number("KILN_SEED");
    let usual = match (seed, slow) {
        (Some(_), _) => 1,
        (None, true) => 100_000,
        (None, false) => 1_000,
    };
    (seed.unwrap_or(0), number("KILN_PROGRAMS").unwrap_or(usual))
}

fn program(seed: u64, exact: bool) -> Program {
    Program::new(seed, 1 + (seed % 5) as usize, exact)
}

/// Leaves out steps as long as the program fails.
fn shrink(runner: &Runner, program: &Program, outcome: Outcome) -> (Program, Outcome) {
    let (mut best, mut why) = (program.clone(), outcome);
    let mut at = best.steps.len();
    while at > 0 {
        at -= 1;
        let mut smaller = best.clone();
        smaller.steps.remove(at);
        let outcome = runner.batch(std::slice::from_ref(&smaller)).remove(0);
        if let Outcome::Failed(_) = outcome {
            (best, why) = (smaller, outcome);
            at = best.steps.len();
        }
    }
    (best, why)
}

/// Runs all programs on a device and says what went wrong.
fn explore(runner: &Runner, exact: bool) {
    let ((first, count), start) = (range(), Instant::now());
    let batches = count.div_ceil(BATCH as u64) as usize;
    let next = AtomicUsize::new(0);
    let counts = Mutex::new(BTreeMap::<String, usize>::new());
    let failed = Mutex::new(vec![]);
    let work = || {
        loop {
            let batch = next.fetch_add(1, Ordering::Relaxed) as u64;
            if batch as usize >= batches {
                break;
            }
            let from = batch * BATCH as u64;
            let programs: Vec<_> = (from..count.min(from + BATCH as u64)).map(|i| program(first + i, exact)).collect();
            for (p, outcome) in programs.iter().zip(runner.batch(&programs)) {
                let name = match &outcome {
                    Outcome::Equal => "equal".into(),
                    Outcome::Refused(why) => format!("refused: {}", why.split('(').next().unwrap_or_default()),
                    Outcome::Failed(_) => "failed".into(),
                };
                *counts.lock().expect("no panic").entry(name).or_default() += 1;
                if let Outcome::Failed(_) = outcome {
                    failed.lock().expect("no panic").push((p.clone(), outcome));
                }
            }
        }
    };
    let workers = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|s| (0..workers).for_each(|_| drop(s.spawn(work))));
    let counts = counts.into_inner().expect("no panic");
    println!(
        "{}: {count} programs from seed {first} in {:.1} s: {counts:?}",
        runner.name(),
        start.elapsed().as_secs_f64()
    );
    let failed = failed.into_inner().expect("no panic");
    let mut texts = vec![];
    for (p, outcome) in failed.iter().take(REPORTED) {
        let (small, why) = shrink(runner, p, outcome.clone());
        texts.push(format!(
            "seed {} on {}, steps {:?} of {}: {}\n{}\nagain: KILN_SEED={} cargo test -p kiln-tests --test random_ir -- --nocapture",
            p.seed,
            runner.name(),
            small.steps,
            p.steps.len(),
            match why {
                Outcome::Failed(why) => why,
                Outcome::Equal | Outcome::Refused(_) => String::new(),
            },
            run::text(&small),
            p.seed,
        ));
    }
    assert!(failed.is_empty(), "{} programs fail\n{}", failed.len(), texts.join("\n\n"));
    let refused: usize = counts.iter().filter(|c| c.0.starts_with("refused")).map(|c| c.1).sum();
    assert!(
        refused * 20 <= count as usize || count < 20,
        "more than one in twenty programs proves nothing: {counts:?}"
    );
}

#[test]
fn programs_agree_on_the_simulated_chip() {
    let settings = Settings::from_env();
    let runner = Runner::new("sim:sm_80", &settings);
    match runner.check() {
        Ok(()) => explore(&runner, false),
        Err(e) if !settings.ci => println!("skipped: {e}"),
        Err(e) => panic!("{e}"),
    }
}

#[test]
fn programs_agree_on_a_gpu() {
    let settings = Settings::from_env();
    // A named device must be there.
    let named = settings.device.starts_with("cuda:");
    let runner = Runner::new(if named { &settings.device } else { "cuda:0" }, &settings);
    match runner.check() {
        Ok(()) => explore(&runner, true),
        Err(e) if !named => println!("skipped: {e}"),
        Err(e) => panic!("{e}"),
    }
}

#[test]
fn what_was_found_stays_fixed() {
    let settings = Settings::from_env();
    let runner = Runner::new("sim:sm_80", &settings);
    match runner.check() {
        Ok(()) => found::check(&runner),
        Err(e) if !settings.ci => println!("skipped: {e}"),
        Err(e) => panic!("{e}"),
    }
}

//! The search: every configuration of a space is planned, checked, built, compared with the default's result and timed.
//!
//! Nothing is chosen by a model: only measured candidates can win, and all others are recorded with the reason.

use super::records::{Key, Record, Records, Status, config_hash};
use crate::device::{Device, Stream};
use crate::error::{Error, Result};
use crate::measure::{self, MeasureOptions};
use kiln_codegen::abi::{Launcher, Plan};
use kiln_codegen::bind;
use kiln_codegen::host_tensor::HostTensor;
use kiln_codegen::spec::{Configs, KernelDef, OpSpec, Problem};
use kiln_codegen::tune::Config;
use rayon::prelude::*;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Judges a candidate's output against the default config's where bits may differ: name, expected, got; `Err` says what
/// is wrong.
pub type Compare<'a> = &'a (dyn Fn(&str, &HostTensor, &HostTensor) -> std::result::Result<(), String> + Sync);

/// What is tuned.
pub struct Task<'a> {
    /// Operator whose plan is run.
    pub op: Arc<dyn OpSpec>,
    /// The kernel of that plan whose space is searched.
    pub kernel: Arc<dyn KernelDef>,
    /// Independent problems of equal shapes on the device, inputs and outputs; see [`measure::sets_for`].
    pub problems: Vec<Problem>,
    /// Names of the outputs.
    pub outputs: Vec<String>,
    /// Tolerance for configs that change rounding.
    pub compare: Compare<'a>,
}

/// How to search.
#[derive(Clone, Debug, Default)]
pub struct SearchOptions {
    /// Time after which no further candidate is started.
    pub budget: Option<Duration>,
    /// Keep fields that change result bits at their defaults.
    pub reproducible: bool,
    /// Take over records of an earlier search of the same key.
    pub resume: bool,
    /// How to measure.
    pub measure: MeasureOptions,
}

/// Result of a search.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// What it holds for.
    pub key: Key,
    /// All candidates, in order of the space; those not reached are missing.
    pub records: Vec<Record>,
    /// Fastest config.
    pub best: Config,
    /// Its median time.
    pub best_us: f64,
    /// Candidates not reached within the budget.
    pub skipped: usize,
}

/// One config for the tuned kernel, the default for all others.
#[derive(Debug)]
struct One<'a> {
    kernel: &'a str,
    config: &'a Config,
}

impl Configs for One<'_> {
    fn choose(&self, kernel: &dyn KernelDef, _: &BTreeMap<String, usize>) -> Config {
        if kernel.info().name == self.kernel { self.config.clone() } else { kernel.space().default_config() }
    }
}

/// Candidates that are built together.
const BATCH: usize = 16;

/// Searches the space of a kernel on a device and stores the records. `progress` sees every finished candidate.
///
/// # Errors
/// A default config that does not work, a device fault, or records that cannot be written. Other candidates' errors are
/// their records.
pub fn search(
    device: &Device,
    task: &Task,
    options: &SearchOptions,
    records: &Records,
    progress: &mut dyn FnMut(&Record),
) -> Result<Outcome> {
    let start = Instant::now();
    let space = task.kernel.space();
    let default = space.default_config();
    let stream = device.stream()?;
    let plans = plans(task, &default)?;
    let dims = dims_of(task, &plans)?;
    let key = Key::new(&*task.kernel, &dims, &device.info(), &device.compiler()?);
    let driver = device.info().driver;
    let expected = outputs(device, &stream, task, &plans)?;
    let earlier = if options.resume { records.load(&key)? } else { None };
    let mut done: Vec<Record> = vec![];
    let mut skipped = 0;
    let numerics: Vec<_> = space.axes.iter().filter(|a| a.numerics).map(|a| a.name.as_str()).collect();
    let same_bits = |c: &Config| numerics.iter().all(|n| c.0.get(*n) == default.0.get(*n));
    let all: Vec<_> = space.all().into_iter().filter(|c| !options.reproducible || same_bits(c)).collect();
    for batch in all.chunks(BATCH) {
        let late = |d: &Record| d.config != default && options.budget.is_some_and(|b| start.elapsed() > b);
        if done.last().is_some_and(late) {
            skipped += batch.len();
            continue;
        }
        // Compilation dominates and runs in parallel; the device is used by one candidate at a time.
        let ready: Vec<_> = batch
            .par_iter()
            .map(|config| {
                let hash = config_hash(&*task.kernel, &dims, config);
                let known = earlier.iter().flat_map(|e| &e.records).find(|r| r.config == *config && r.hash == hash);
                if let Some(known) = known {
                    return (hash, Err(known.status.clone()));
                }
                let prepared = prepare(&stream, task, config, &dims);
                let failed = |e: Error| match e {
                    Error::Operator { message, .. } => Status::Refused(message),
                    e if e.is_refusal() => Status::Refused(e.to_string()),
                    e => Status::Failed(e.to_string()),
                };
                (hash, prepared.map_err(failed))
            })
            .collect();
        for (config, (hash, prepared)) in batch.iter().zip(ready) {
            if *config != default && options.budget.is_some_and(|b| start.elapsed() > b) {
                skipped += 1;
                continue;
            }
            let status = match prepared {
                Err(status) => status,
                Ok(plans) => match judge(device, &stream, task, &plans, &expected, same_bits(config), options) {
                    Ok(status) => status,
                    Err(e @ Error::Fault { .. }) => {
                        done.push(Record { config: config.clone(), hash, status: Status::Failed(e.to_string()) });
                        records.store(&key, &driver, &done)?;
                        return Err(e);
                    }
                    Err(e) => Status::Failed(e.to_string()),
                },
            };
            let record = Record { config: config.clone(), hash, status };
            progress(&record);
            done.push(record);
        }
        records.store(&key, &driver, &done)?;
    }
    finalists(device, task, options, &mut done)?;
    records.store(&key, &driver, &done)?;
    let best = done
        .iter()
        .filter_map(|r| Some((r.median_us()?, r)))
        .min_by(|a, b| a.0.total_cmp(&b.0))
        .map(|(us, r)| (us, r.config.clone()));
    let (best_us, best) = best.ok_or_else(|| Error::Operator {
        op: task.op.info().name.into(),
        message: "no configuration could be measured, not even the default".into(),
    })?;
    Ok(Outcome { key, records: done, best, best_us, skipped })
}

/// Candidates that are measured again, in turns: a lead won while the card was cooler does not survive that.
const FINALISTS: usize = 3;
const ROUNDS: usize = 2;

/// Measures the fastest few again in interleaved rounds; each keeps the median of its medians. One that was measured once
/// may lead after that: then again, until the leader is among those that took turns.
fn finalists(device: &Device, task: &Task, options: &SearchOptions, done: &mut [Record]) -> Result<()> {
    let mut took_turns = BTreeSet::new();
    loop {
        let mut order: Vec<usize> = (0..done.len()).filter(|&i| done[i].median_us().is_some()).collect();
        let median = |i: usize| done[i].median_us().unwrap_or(f64::MAX);
        order.sort_by(|&a, &b| median(a).total_cmp(&median(b)));
        order.truncate(FINALISTS);
        if order.len() < 2 || took_turns.contains(&order[0]) {
            return Ok(());
        }
        let mut times: Vec<Vec<measure::Measurement>> = vec![vec![]; order.len()];
        for _ in 0..ROUNDS {
            for (times, &i) in times.iter_mut().zip(&order) {
                times.push(measure::time(device, &plans(task, &done[i].config)?, &options.measure)?);
            }
        }
        for (mut times, &i) in times.into_iter().zip(&order) {
            if let Status::Ok(first) = &done[i].status {
                times.push(first.clone());
            }
            times.sort_by(|a, b| a.median_us.total_cmp(&b.median_us));
            done[i].status = Status::Ok(times.swap_remove(times.len() / 2));
        }
        took_turns.extend(order);
    }
}

fn plans(task: &Task, config: &Config) -> Result<Vec<Plan>> {
    let configs = One { kernel: &task.kernel.info().name, config };
    let plan = |p: &Problem| task.op.plan(p, &configs);
    let all: std::result::Result<Vec<_>, _> = task.problems.iter().map(plan).collect();
    all.map_err(|e| Error::Operator { op: e.op, message: e.message })
}

/// Dimensions of the tuned kernel, from the step of the default plan that launches it.
fn dims_of(task: &Task, plans: &[Plan]) -> Result<BTreeMap<String, usize>> {
    let name = &task.kernel.info().name;
    let step = plans.iter().flat_map(|p| &p.steps).find(|s| s.kernel.info().name == *name);
    let step = step.ok_or_else(|| Error::Operator {
        op: task.op.info().name.into(),
        message: format!("its plan does not launch `{name}`, or there is no problem to tune on"),
    })?;
    Ok(bind::bind(&*step.kernel, &step.config, &step.args)?.dims)
}

/// Plans and builds a candidate.
fn prepare(stream: &Stream, task: &Task, config: &Config, dims: &BTreeMap<String, usize>) -> Result<Vec<Plan>> {
    if let Err(failed) = task.kernel.require(dims, config) {
        return Err(Error::Operator { op: task.op.info().name.into(), message: failed.join("; ") });
    }
    let plans = plans(task, config)?;
    plans.iter().try_for_each(|p| stream.prepare(p))?;
    Ok(plans)
}

/// Runs the first problem and downloads its outputs. They are cleared before, so that a candidate that writes nothing
/// does not pass with the results of the one before it.
fn outputs(device: &Device, stream: &Stream, task: &Task, plans: &[Plan]) -> Result<Vec<HostTensor>> {
    let (Some(problem), Some(plan)) = (task.problems.first(), plans.first()) else { return Ok(vec![]) };
    let mut views = vec![];
    for name in &task.outputs {
        let view = problem.tensors.get(name).ok_or_else(|| Error::Operator {
            op: task.op.info().name.into(),
            message: format!("the problem has no output `{name}`"),
        })?;
        views.push(view);
        device.write(&*view.memory, view.offset_bytes, &vec![0; view.span_bytes()])?;
    }
    stream.run(plan)?;
    stream.synchronize()?;
    views.into_iter().map(|v| device.download(v)).collect()
}

/// Compares and times a candidate.
fn judge(
    device: &Device,
    stream: &Stream,
    task: &Task,
    plans: &[Plan],
    expected: &[HostTensor],
    same_bits: bool,
    options: &SearchOptions,
) -> Result<Status> {
    let got = outputs(device, stream, task, plans)?;
    for ((name, want), got) in task.outputs.iter().zip(expected).zip(&got) {
        if same_bits && want != got {
            let at = (0..want.num_elements()).find(|&i| want.bits(i) != got.bits(i)).unwrap_or(0);
            return Ok(Status::Failed(format!(
                "`{name}` differs from the default config's at element {at} although no field that changes rounding does"
            )));
        }
        if !same_bits && let Err(why) = (task.compare)(name, want, got) {
            return Ok(Status::Failed(format!("`{name}`: {why}")));
        }
    }
    measure::time(device, plans, &options.measure).map(Status::Ok)
}

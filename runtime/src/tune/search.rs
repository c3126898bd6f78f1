//! The search: every configuration of a space is planned, checked, built, compared with the default's result and timed.
//!
//! A model decides what cannot run, so that it is not compiled, and what is tried first, so that a budget is well spent. Only
//! measured candidates can win, and all others are recorded with the reason. The record file is the search's journal: it is
//! replaced after every candidate, so an interrupted search goes on where it was.

use super::model::{Screened, arguments, screen};
use super::records::{Key, Record, Records, Status, config_hash};
use crate::device::{Device, Stream, lock};
use crate::error::{Error, Result};
use crate::measure::{MeasureOptions, Measurement};
use kiln_codegen::abi::{Launch, Launcher, Plan};
use kiln_codegen::bind;
use kiln_codegen::host_tensor::HostTensor;
use kiln_codegen::spec::{Configs, KernelDef, OpSpec, Problem};
use kiln_codegen::tune::Config;
use rayon::prelude::*;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Judges a candidate's output against the default config's where bits may differ: name, expected, got; `Err` says what
/// is wrong.
pub type Compare<'a> = &'a (dyn Fn(&str, &HostTensor, &HostTensor) -> std::result::Result<(), String> + Sync);

/// Times plans that do the same work on independent inputs; [`measure::time`](crate::measure::time) is the real one.
pub type Timer<'a> = &'a (dyn Fn(&Device, &[Plan], &MeasureOptions) -> Result<Measurement> + Sync);

/// What is tuned.
pub struct Task<'a> {
    /// Operator whose plan is run.
    pub op: Arc<dyn OpSpec>,
    /// The kernel of that plan whose space is searched.
    pub kernel: Arc<dyn KernelDef>,
    /// Independent problems of equal shapes on the device, inputs and outputs; see
    /// [`measure::sets_for`](crate::measure::sets_for).
    pub problems: Vec<Problem>,
    /// Names of the outputs.
    pub outputs: Vec<String>,
    /// Which rows of an output are specified; outputs that are not here are specified everywhere. What a config leaves in
    /// the others may differ from the default's.
    pub specified: BTreeMap<String, Vec<bool>>,
    /// Tolerance for configs that change rounding.
    pub compare: Compare<'a>,
    /// What times candidates.
    pub timer: Timer<'a>,
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
    /// What people should know about it.
    pub notes: Vec<String>,
}

/// A search on its way.
#[derive(Clone, Copy, Debug)]
pub struct Progress<'a> {
    /// The candidate that was finished.
    pub record: &'a Record,
    /// It was finished by an earlier search.
    pub known: bool,
    /// Candidates finished.
    pub done: usize,
    /// Candidates in all.
    pub total: usize,
    /// Time left, if those to come take as long as those so far; `None` before there is anything to go by.
    pub remaining: Option<Duration>,
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
    progress: &mut dyn FnMut(Progress),
) -> Result<Outcome> {
    let start = Instant::now();
    let space = task.kernel.space();
    let default = space.default_config();
    let stream = device.stream()?;
    let plans = plans(task, &default)?;
    let dims = asked(task)?;
    let key = Key::new(&*task.kernel, &dims, &device.info(), &device.compiler()?);
    let driver = device.info().driver;
    let expected = outputs(device, &stream, task, &plans)?;
    let (earlier, mut notes) = if options.resume { records.salvage(&key) } else { (None, vec![]) };
    if let Some(e) = earlier.as_ref().filter(|e| e.driver != driver) {
        notes.push(format!("what is taken over was measured with driver {}, this is {driver}", e.driver));
    }
    let numerics: Vec<_> = space.axes.iter().filter(|a| a.numerics).map(|a| a.name.as_str()).collect();
    let same_bits = |c: &Config| numerics.iter().all(|n| c.0.get(*n) == default.0.get(*n));
    let all: Vec<_> = space.all().into_iter().filter(|c| !options.reproducible || same_bits(c)).collect();
    let mut candidates = candidates(device, task, &dims, all, earlier.map(|e| e.records).unwrap_or_default());
    let total = candidates.len();
    let mut journal = Journal { records, key: &key, driver: &driver, done: vec![], later: vec![] };
    // What is known already is in the journal from the start, wherever the search gets this time.
    journal.later = candidates.iter().filter_map(Candidate::known).collect();
    let late = || options.budget.is_some_and(|b| start.elapsed() > b);
    let (mut skipped, mut measured) = (0usize, 0u32);
    let mut measuring = Duration::ZERO;
    for batch in candidates.chunks_mut(BATCH) {
        let began = Instant::now();
        // Compilation dominates and runs in parallel; the device is used by one candidate at a time.
        batch.par_iter_mut().filter(|c| c.config == default || !late()).for_each(|c| c.prepare(&stream, task));
        for candidate in batch {
            let Candidate { config, hash, state } = candidate;
            let known = matches!(state, State::Known(_));
            let status = match std::mem::replace(state, State::Fresh) {
                State::Known(status) | State::Settled(status) => status,
                State::Fresh | State::Ready(_) if *config != default && late() => {
                    skipped += 1;
                    continue;
                }
                // The budget ended while this one was about to be built.
                State::Fresh => {
                    skipped += 1;
                    continue;
                }
                State::Ready(plans) => {
                    measured += 1;
                    match judge(device, &stream, task, &plans, &expected, same_bits(config), options) {
                        Ok(status) => status,
                        Err(e @ Error::Fault { .. }) => {
                            let status = Status::Failed(e.to_string());
                            journal.add(Record { config: config.clone(), hash: hash.clone(), status })?;
                            return Err(e);
                        }
                        Err(e) => Status::Failed(e.to_string()),
                    }
                }
            };
            let record = Record { config: config.clone(), hash: hash.clone(), status };
            journal.add(record.clone())?;
            let done = journal.done.len();
            let spent = measuring + began.elapsed();
            let remaining = (measured > 0).then(|| spent * (total - done - skipped) as u32 / measured);
            progress(Progress { record: &record, known, done, total, remaining });
        }
        measuring += began.elapsed();
    }
    let mut done = journal.done;
    finalists(device, task, options, &mut done)?;
    if skipped == 0 {
        records.store(&key, &driver, &done)?;
    } else {
        records.store_unfinished(&key, &driver, &done)?;
    }
    let best = done
        .iter()
        .filter_map(|r| Some((r.median_us()?, r)))
        .min_by(|a, b| a.0.total_cmp(&b.0))
        .map(|(us, r)| (us, r.config.clone()));
    let (best_us, best) = best.ok_or_else(|| Error::Operator {
        op: task.op.info().name.into(),
        message: "no configuration could be measured, not even the default".into(),
    })?;
    Ok(Outcome { key, records: done, best, best_us, skipped, notes })
}

/// A configuration on its way through the search.
struct Candidate {
    config: Config,
    hash: String,
    state: State,
}

enum State {
    /// Nothing is known.
    Fresh,
    /// Measured by an earlier search.
    Known(Status),
    /// Refused or failed before it ran.
    Settled(Status),
    /// Built.
    Ready(Vec<Plan>),
}

impl Candidate {
    fn known(&self) -> Option<Record> {
        match &self.state {
            State::Known(status) => {
                Some(Record { config: self.config.clone(), hash: self.hash.clone(), status: status.clone() })
            }
            State::Fresh | State::Settled(_) | State::Ready(_) => None,
        }
    }

    /// Plans and builds what nothing is known about.
    fn prepare(&mut self, stream: &Stream, task: &Task) {
        if !matches!(self.state, State::Fresh) {
            return;
        }
        self.state = match prepare(stream, task, &self.config) {
            Ok(plans) => State::Ready(plans),
            Err(Error::Operator { message, .. }) => State::Settled(Status::Refused(message)),
            Err(e) if e.is_refusal() => State::Settled(Status::Refused(e.to_string())),
            Err(e) => State::Settled(Status::Failed(e.to_string())),
        };
    }
}

/// All candidates, the default first, then those the model thinks fastest. What it knows cannot run is settled.
fn candidates(
    device: &Device,
    task: &Task,
    dims: &BTreeMap<String, usize>,
    all: Vec<Config>,
    earlier: Vec<Record>,
) -> Vec<Candidate> {
    let target = device.target();
    let mut out: Vec<(f64, Candidate)> = all
        .into_par_iter()
        .enumerate()
        .map(|(i, config)| {
            let hash = config_hash(&*task.kernel, dims, &config);
            if let Some(r) = earlier.iter().find(|r| r.config == config && r.hash == hash) {
                return (0.0, Candidate { config, hash, state: State::Known(r.status.clone()) });
            }
            let screened = (target.caps().is_some() && i > 0).then(|| screened(task, dims, &config, device)).flatten();
            let (us, state) = match screened {
                Some(Screened::Refused(why)) => (f64::INFINITY, State::Settled(Status::Refused(why))),
                Some(fits @ Screened::Fits(_)) => (fits.us(), State::Fresh),
                None => (f64::INFINITY, State::Fresh),
            };
            (us, Candidate { config, hash, state })
        })
        .collect();
    // The sort is stable: without a model the order of the space stays.
    if let Some((_, rest)) = out.split_first_mut() {
        rest.sort_by(|a, b| a.0.total_cmp(&b.0));
    }
    out.into_iter().map(|(_, c)| c).collect()
}

/// What the model says; `None` if the launch cannot even be planned, which `prepare` will say better.
fn screened(task: &Task, dims: &BTreeMap<String, usize>, config: &Config, device: &Device) -> Option<Screened> {
    let plans = plans(task, config).ok()?;
    let step = step_of(task, &plans).ok()?;
    let real = screen(&*step.kernel, &step.config, &step.args, device.target());
    if bind::dims(&*step.kernel, &step.args).is_ok_and(|bound| bound == *dims) {
        return Some(real);
    }
    // What the operator asks for says more about the work than its tensors where these are only partly used.
    match (real, arguments(&*task.kernel, dims)) {
        (Screened::Fits(_), Some(args)) => match screen(&*step.kernel, &step.config, &args, device.target()) {
            fits @ Screened::Fits(_) => Some(fits),
            Screened::Refused(_) => Some(Screened::Fits(None)),
        },
        (real, _) => Some(real),
    }
}

/// The record file while the search runs.
struct Journal<'a> {
    records: &'a Records,
    key: &'a Key,
    driver: &'a str,
    done: Vec<Record>,
    /// Known from an earlier search and not reached yet by this one.
    later: Vec<Record>,
}

impl Journal<'_> {
    fn add(&mut self, record: Record) -> Result<()> {
        self.later.retain(|r| r.config != record.config);
        self.done.push(record);
        let all: Vec<Record> = self.done.iter().chain(&self.later).cloned().collect();
        self.records.store_unfinished(self.key, self.driver, &all).map(drop)
    }
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
        let mut times: Vec<Vec<Measurement>> = vec![vec![]; order.len()];
        for _ in 0..ROUNDS {
            for (times, &i) in times.iter_mut().zip(&order) {
                times.push((task.timer)(device, &plans(task, &done[i].config)?, &options.measure)?);
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

/// Notes what an operator asks a config of the tuned kernel for; gives every kernel its default.
#[derive(Debug)]
struct Asking<'a> {
    kernel: &'a str,
    dims: Mutex<Option<BTreeMap<String, usize>>>,
}

impl Configs for Asking<'_> {
    fn choose(&self, kernel: &dyn KernelDef, dims: &BTreeMap<String, usize>) -> Config {
        if kernel.info().name == self.kernel {
            *lock(&self.dims) = Some(dims.clone());
        }
        kernel.space().default_config()
    }
}

/// The dimensions the operator asks a config of the tuned kernel for: what a later choice will be made by.
fn asked(task: &Task) -> Result<BTreeMap<String, usize>> {
    let name = &task.kernel.info().name;
    let refused = |message: String| Error::Operator { op: task.op.info().name.into(), message };
    let asking = Asking { kernel: name, dims: Mutex::default() };
    let problem = task.problems.first().ok_or_else(|| refused("there is no problem to tune on".into()))?;
    task.op.plan(problem, &asking).map_err(|e| refused(e.message))?;
    let dims = lock(&asking.dims).take();
    dims.ok_or_else(|| refused(format!("its plan does not ask for a config of `{name}`")))
}

/// The step of a plan that launches the tuned kernel.
fn step_of<'a>(task: &Task, plans: &'a [Plan]) -> Result<&'a Launch> {
    let name = &task.kernel.info().name;
    let step = plans.iter().flat_map(|p| &p.steps).find(|s| s.kernel.info().name == *name);
    step.ok_or_else(|| Error::Operator {
        op: task.op.info().name.into(),
        message: format!("its plan does not launch `{name}`, or there is no problem to tune on"),
    })
}

/// Plans and builds a candidate.
fn prepare(stream: &Stream, task: &Task, config: &Config) -> Result<Vec<Plan>> {
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

/// The first element, in the rows that are specified, whose bits differ.
fn difference(want: &HostTensor, got: &HostTensor, rows: Option<&[bool]>) -> Option<usize> {
    if want == got {
        return None;
    }
    let columns = want.shape.last().copied().unwrap_or(1).max(1);
    let specified = |i: usize| rows.is_none_or(|r| r.get(i / columns).copied().unwrap_or(true));
    (0..want.num_elements()).find(|&i| specified(i) && want.bits(i) != got.bits(i))
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
        if same_bits && let Some(at) = difference(want, got, task.specified.get(name).map(Vec::as_slice)) {
            return Ok(Status::Failed(format!(
                "`{name}` differs from the default config's at element {at} although no field that changes rounding does"
            )));
        }
        if !same_bits && let Err(why) = (task.compare)(name, want, got) {
            return Ok(Status::Failed(format!("`{name}`: {why}")));
        }
    }
    (task.timer)(device, plans, &options.measure).map(Status::Ok)
}

#[cfg(test)]
mod tests {
    use super::*;
    use kiln_codegen::ir::DType;

    #[test]
    fn rows_that_are_not_specified_may_differ() {
        let tensor = |data: [u8; 4]| HostTensor { data: data.to_vec(), ..HostTensor::zeros(DType::U8, &[2, 2]) };
        let (want, got) = (tensor([1, 2, 3, 4]), tensor([1, 2, 3, 5]));
        assert_eq!(difference(&want, &want, None), None);
        assert_eq!(difference(&want, &got, None), Some(3));
        assert_eq!(difference(&want, &got, Some(&[true, false])), None);
        assert_eq!(difference(&want, &got, Some(&[false, true])), Some(3));
    }
}

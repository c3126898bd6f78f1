//! How long does a user wait for the first result of a kernel, with nothing cached? One row an operator.
//!
//!     cargo bench -p kiln-benches --bench first_result -- cuda:0
//!
//! Counted: plan, build, verify, lower, emit, the vendor's compiler, load, launch, wait. Not counted: opening the device
//! and filling inputs. Without a device's name the best one is taken. The goal is one second.
#![allow(clippy::print_stdout, reason = "a bench prints its result")]

use kiln_benches::{largest_case, tensors};
use kiln_codegen::abi::Launcher;
use kiln_codegen::spec::{DefaultConfigs, OpSpec, Problem};
use kiln_runtime::config::Settings;
use kiln_runtime::device::{Device, open_with};
use std::error::Error;
use std::time::Instant;

const GOAL_MS: f64 = 1000.0;

fn main() -> Result<(), Box<dyn Error>> {
    let empty = tempfile::tempdir()?;
    let settings = Settings { cache_dirs: vec![empty.path().into()], ..Settings::from_env() };
    let named = std::env::args().skip(1).find(|a| !a.starts_with("--"));
    let start = Instant::now();
    let device = open_with(named.as_deref().unwrap_or(&settings.device), &settings)?;
    println!("device {}, opened in {:.0} ms; goal {GOAL_MS} ms", device.name(), start.elapsed().as_secs_f64() * 1e3);
    for op in kiln_kernels::registry() {
        match first(&device, op.as_ref())? {
            Some((case, ms)) => {
                let over = if ms > GOAL_MS { "  over the goal" } else { "" };
                println!("{:<24} {case:<28} {ms:8.1} ms{over}", op.info().name);
            }
            None => println!("{:<24} no case is declared", op.info().name),
        }
    }
    Ok(())
}

/// Name of the case, and milliseconds from its problem to its outputs.
fn first(device: &Device, op: &dyn OpSpec) -> Result<Option<(String, f64)>, Box<dyn Error>> {
    let Some(case) = largest_case(op) else { return Ok(None) };
    let mut problem = Problem { params: case.params.clone(), ..Problem::default() };
    for t in tensors(op, &case)? {
        problem.tensors.insert(t.name, device.zeros(t.dtype, &t.shape)?);
    }
    let stream = device.stream()?;
    let start = Instant::now();
    let plan = op.plan(&problem, &DefaultConfigs)?;
    stream.run(&plan)?;
    stream.synchronize()?;
    Ok(Some((case.id, start.elapsed().as_secs_f64() * 1e3)))
}

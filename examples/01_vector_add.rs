//! Lesson 1: a kernel is a function. Run with `cargo run --example 01_vector_add [DEVICE]`.
//!
//! The body runs once while the kernel is being built; what it leaves behind runs on the device. `grid` starts one block for
//! each tile, `parallel` spreads the elements of a tile over its threads. Reads past the end of a tensor give zero and
//! writes past it are dropped, so `n` need not be a multiple of the tile.
#![allow(clippy::print_stdout, reason = "a lesson shows its result")]

use kiln::op::HostTensor;
use kiln::prelude::*;
use std::error::Error;

/// Host values the kernel is built with.
#[derive(KernelConfig, Clone, Debug)]
pub struct AddConfig {
    /// Elements of a block.
    #[tune(1024, 2048)]
    pub block: usize,
}

/// `z[i] = x[i] + y[i]`.
#[kernel]
pub fn vector_add(cfg: &AddConfig, x: In![F32; n], y: In![F32; n], z: Out![F32; n]) {
    let first = grid(n.div_ceil(cfg.block)) * cfg.block;
    for i in parallel([cfg.block]) {
        z[first + i] = x[first + i] + y[first + i];
    }
}

/// Adds two vectors on a device.
fn add(device: &str, x: &[f64], y: &[f64]) -> Result<Vec<f64>, Box<dyn Error>> {
    let device = kiln::runtime::open(device)?;
    let x = device.upload(&HostTensor::from_f64(F32::DTYPE, &[x.len()], x))?;
    let y = device.upload(&HostTensor::from_f64(F32::DTYPE, &[y.len()], y))?;
    let z = device.zeros(F32::DTYPE, &x.shape)?;
    let stream = device.stream()?;
    // Dtype and rank are checked here; shapes, strides and overlaps when the launch is executed.
    let args = vector_add::Args { x: View::new(&x)?, y: View::new(&y)?, z: ViewMut::new(&z)? };
    vector_add::launch(&stream, &AddConfig { block: 1024 }, args)?;
    stream.synchronize()?;
    Ok(device.download(&z)?.to_f64())
}

fn main() -> Result<(), Box<dyn Error>> {
    let device = std::env::args().nth(1).unwrap_or("best".into());
    let x: Vec<f64> = (0..10_000).map(f64::from).collect();
    let z = add(&device, &x, &x)?;
    println!("z[0..4] = {:?}, z[9999] = {}", &z[..4], z[9999]);
    Ok(())
}

#[test]
fn adds_sizes_that_no_tile_divides() {
    for n in [0, 1, 1000, 2049] {
        let x: Vec<f64> = (0..n).map(f64::from).collect();
        let want: Vec<f64> = x.iter().map(|v| 2.0 * v).collect();
        assert_eq!(add("cpu", &x, &x).expect("it runs on every machine"), want);
    }
}

#[test]
fn a_wrong_launch_is_refused_with_a_reason() {
    let message = add("cpu", &[1.0, 2.0], &[1.0]).expect_err("sizes differ").to_string();
    assert!(message.contains("parameter `y`") && message.contains("`n`"), "{message}");
}

//! Lesson 2: tiles and reductions. Run with `cargo run --example 02_softmax [DEVICE]`.
//!
//! A `frag` is a tile that a block keeps near its threads; on a GPU it lives in registers. Each statement is a phase: what
//! it writes, the next one sees, and the compiler adds barriers where threads depend on each other. Sums have an order
//! that is the same on every target.
#![allow(clippy::print_stdout, reason = "a lesson shows its result")]

use kiln::op::HostTensor;
use kiln::prelude::*;
use kiln::runtime::RunOptions;
use std::error::Error;

/// Host values the kernel is built with.
#[derive(KernelConfig, Clone, Debug)]
pub struct SoftmaxConfig {
    /// Rows of a block.
    #[tune(1, 2, 4)]
    pub rows: usize,
    /// Warps of a block: part of the order of the sum, so part of the result's bits.
    #[numerics]
    #[tune(4, 8)]
    pub warps: usize,
}

/// `y[t, j] = exp(x[t, j] - max_j x[t, :]) / sum_j exp(..)`. `fixed` bakes the row length into the code.
#[kernel(dims(h: fixed), batch_invariant(t))]
pub fn softmax(cfg: &SoftmaxConfig, x: In![F32; t, h], y: Out![F32; t, h]) {
    let first = grid(t.div_ceil(cfg.rows)) * cfg.rows;
    warps(cfg.warps);

    let row = frag::<F32, 2>([cfg.rows, h]);
    copy(x.at((first, 0)), row);
    let top = reduce_max(row, 1);
    for (i, j) in parallel([cfg.rows, h]) {
        row[(i, j)] = exp(row[(i, j)] - top[i]);
    }
    let sum = reduce_sum(row, 1);
    for (i, j) in parallel([cfg.rows, h]) {
        y[(first + i, j)] = row[(i, j)] / sum[i];
    }
}

/// Softmax of each row on a device.
fn run(device: &str, sanitize: bool, rows: usize, columns: usize, x: &[f64]) -> Result<Vec<f64>, Box<dyn Error>> {
    let device = kiln::runtime::open(device)?;
    // On the CPU the checks of the tile VM can be turned on.
    let device = device.with_run_options(RunOptions { sanitize, ..RunOptions::default() });
    let x = device.upload(&HostTensor::from_f64(F32::DTYPE, &[rows, columns], x))?;
    let y = device.zeros(F32::DTYPE, &x.shape)?;
    let stream = device.stream()?;
    let args = softmax::Args { x: View::new(&x)?, y: ViewMut::new(&y)? };
    softmax::launch(&stream, &SoftmaxConfig { rows: 2, warps: 4 }, args)?;
    stream.synchronize()?;
    Ok(device.download(&y)?.to_f64())
}

fn main() -> Result<(), Box<dyn Error>> {
    let device = std::env::args().nth(1).unwrap_or("best".into());
    let y = run(&device, false, 1, 4, &[1.0, 2.0, 3.0, 4.0])?;
    println!("softmax(1, 2, 3, 4) = {y:.4?}");
    Ok(())
}

#[test]
fn rows_sum_to_one_and_match_the_plain_loops() {
    let (rows, columns) = (3, 100);
    let x: Vec<f64> = (0..rows * columns).map(|i| f64::from((i * 37 % 101) as u8) / 10.0).collect();
    let y = run("cpu", true, rows, columns, &x).expect("it runs on every machine");
    for (x, y) in x.chunks(columns).zip(y.chunks(columns)) {
        let top = x.iter().copied().fold(f64::MIN, f64::max);
        let sum: f64 = x.iter().map(|v| (v - top).exp()).sum();
        for (x, y) in x.iter().zip(y) {
            let want = (x - top).exp() / sum;
            assert!((y - want).abs() <= 1e-5 * want, "{y} instead of {want}");
        }
        assert!((y.iter().sum::<f64>() - 1.0).abs() < 1e-5);
    }
}

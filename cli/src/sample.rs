//! Judging a sample of a large problem: pieces of it along the axes an operator declares independent ([`Split`]), for
//! which the plain reference is affordable.
//!
//! Not here: running the operator, which is always given the whole problem.

use crate::judge::{self, Judged};
use crate::runner::{self, Tensors};
use kiln_codegen::spec::{Case, Cost, HostProblem, OpSpec, Params, Split, TensorSpec};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// Work of the first sample, in operations; its time tells how large the next one may be.
const FIRST: f64 = 2e8;

/// Operations a byte counts for: references convert, compare and sort, which a cost does not count.
const PER_BYTE: f64 = 32.0;

/// Above this many operations a problem that cannot be cut is not judged.
const WHOLE: f64 = 2e10;

/// What was judged, and how it went.
#[derive(Clone, Debug)]
pub struct Verdict {
    /// The worst output; `None` if there is none.
    pub worst: Option<Judged>,
    /// `|out - ref| / |ref|` over all outputs.
    pub rel_err: f64,
    /// In words: all of it, or how much along which axes.
    pub judged: String,
}

/// Judges the outputs of a problem by a reference that takes `budget`, roughly: the sample grows until the next one would
/// take longer. `None` if that is not possible: the problem cannot be cut, or no piece is small.
///
/// # Errors
/// A problem the operator refuses, an output it does not expect.
pub fn judge(
    op: &dyn OpSpec,
    case: &Case,
    inputs: &Tensors,
    outputs: &Tensors,
    budget: Duration,
) -> Result<Option<Verdict>, String> {
    let specs = runner::specs(inputs);
    let splits: Vec<Split> = op.splits(&specs, &case.params).into_iter().filter(|s| s.pieces > 1).collect();
    let work = work(&op.cost(&specs, &case.params));
    if splits.is_empty() && work > WHOLE {
        return Ok(None);
    }
    let all: f64 = splits.iter().map(|s| s.pieces as f64).product();
    let mut share = FIRST / work.max(1.0);
    if left(op, &specs, &splits, &choose(&splits, share), &case.params) > WHOLE {
        return Ok(None);
    }
    loop {
        let start = Instant::now();
        let picks = choose(&splits, share);
        let verdict = part(op, case, inputs, outputs, &splits, &picks)?;
        let failed = verdict.worst.as_ref().is_some_and(|w| !w.verdict.ok);
        let taken: f64 = picks.iter().map(|p| p.len() as f64).product::<f64>() / all;
        let growth = budget.as_secs_f64() / 2.0 / start.elapsed().as_secs_f64().max(1e-4);
        if failed || taken >= 1.0 || growth < 2.0 {
            return Ok(Some(verdict));
        }
        share = taken * growth;
    }
}

/// Work of the reference on the pieces `picks` of each split.
fn left(
    op: &dyn OpSpec,
    specs: &BTreeMap<String, TensorSpec>,
    splits: &[Split],
    picks: &[Vec<usize>],
    params: &Params,
) -> f64 {
    let mut specs = specs.clone();
    for (split, pieces) in splits.iter().zip(picks) {
        for (tensor, axis, span) in &split.tensors {
            if let Some(extent) = specs.get_mut(*tensor).map(|s| &mut s.shape[*axis]) {
                *extent = pieces.iter().map(|p| (*extent - p * span).min(*span)).sum();
            }
        }
    }
    work(&op.cost(&specs, params))
}

fn work(cost: &Cost) -> f64 {
    cost.flops + PER_BYTE * cost.bytes
}

/// Judges the pieces `picks` of each split.
fn part(
    op: &dyn OpSpec,
    case: &Case,
    inputs: &Tensors,
    outputs: &Tensors,
    splits: &[Split],
    picks: &[Vec<usize>],
) -> Result<Verdict, String> {
    let problem = HostProblem { tensors: restrict(splits, picks, inputs), params: case.params.clone() };
    let got = restrict(splits, picks, outputs);
    let expected = op.reference(&problem).map_err(|e| e.to_string())?;
    if let Some(name) = got.keys().find(|n| !expected.contains_key(*n)) {
        return Err(format!("the operator computes `{name}`, which its reference does not"));
    }
    let metrics: Vec<_> = expected.keys().map(|n| (n.clone(), op.tolerance(n, &case.params).into())).collect();
    let (mut error, mut norm) = (0.0, 0.0);
    for (name, got) in &got {
        for (g, w) in got.to_f64().iter().zip(expected[name].to_f64()).filter(|(_, w)| w.is_finite()) {
            error += (g - w) * (g - w);
            norm += w * w;
        }
    }
    let judged = describe(splits, picks, inputs, &problem.tensors);
    let known = problem.tensors.into_iter().chain(expected).collect();
    let worst = judge::worst(&metrics, &known, &got, &case.params);
    Ok(Verdict { worst, rel_err: if norm > 0.0 { (error / norm).sqrt() } else { f64::sqrt(error) }, judged })
}

/// Tensors cut to some pieces of each split.
fn restrict(splits: &[Split], picks: &[Vec<usize>], tensors: &Tensors) -> Tensors {
    let cut = |(name, whole): (&String, _)| {
        let mut tensor: Option<kiln_codegen::host_tensor::HostTensor> = None;
        for (split, pieces) in splits.iter().zip(picks).filter(|(s, p)| p.len() < s.pieces) {
            tensor = Some(split.pick(name, tensor.as_ref().unwrap_or(whole), pieces));
        }
        (name.clone(), tensor.unwrap_or_else(|| whole.clone()))
    };
    tensors.iter().map(cut).collect()
}

/// `all`, or `m 64 of 8192, n 3584 of 7168`: elements along each axis, as an input has them.
fn describe(splits: &[Split], picks: &[Vec<usize>], whole: &Tensors, part: &Tensors) -> String {
    let mut words = vec![];
    for (split, pieces) in splits.iter().zip(picks).filter(|(s, p)| p.len() < s.pieces) {
        let found = split
            .tensors
            .iter()
            .find_map(|&(name, axis, _)| Some((part.get(name)?.shape.get(axis)?, whole.get(name)?.shape.get(axis)?)));
        let (some, all) = found.unwrap_or((&0, &0));
        let (some, all) = if *all == 0 { (pieces.len(), split.pieces) } else { (*some, *all) };
        words.push(format!("{} {some} of {all}", split.name));
    }
    if words.is_empty() { "all".into() } else { words.join(", ") }
}

/// Pieces of each split, ascending, so that together they are about `share` of the problem. The axis with most pieces is
/// thinned first. The first and the last piece are always there where there is room for two, since edges fail first; the
/// others are spread, at places that follow no multiple of a tile.
fn choose(splits: &[Split], share: f64) -> Vec<Vec<usize>> {
    let mut counts: Vec<usize> = splits.iter().map(|s| s.pieces).collect();
    let all: f64 = counts.iter().map(|&c| c as f64).product();
    while counts.iter().map(|&c| c as f64).product::<f64>() > (share * all).max(1.0) {
        match counts.iter_mut().max() {
            Some(most) if *most > 1 => *most = most.div_ceil(2),
            _ => break,
        }
    }
    // What halving left over goes to the axis with most pieces.
    let taken: f64 = counts.iter().map(|&c| c as f64).product();
    if let Some((split, count)) = splits.iter().zip(&mut counts).max_by_key(|(_, c)| **c) {
        *count = ((*count as f64 * share * all / taken) as usize).clamp(*count, split.pieces);
    }
    let spread = |(split, count): (&Split, usize)| {
        let n = split.pieces;
        if count >= n {
            return (0..n).collect();
        }
        let mut random = crate::fill::Random::new(split.name);
        let place = |i: usize| {
            let (lo, hi) = (i * n / count, (i + 1) * n / count);
            match i {
                0 => 0,
                _ if i + 1 == count => n - 1,
                _ => lo + (random.bits() % (hi - lo) as u64) as usize,
            }
        };
        (0..count).map(place).collect()
    };
    splits.iter().zip(counts).map(spread).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    fn split(name: &'static str, pieces: usize) -> Split {
        Split { name, pieces, tensors: vec![] }
    }

    #[test]
    fn samples_keep_to_their_share_and_take_the_edges() {
        let splits = [split("m", 2048), split("n", 56)];
        let picks = choose(&splits, 1e-3);
        let taken = picks.iter().map(Vec::len).product::<usize>();
        assert!((90..=115).contains(&taken), "{taken}");
        for (s, p) in splits.iter().zip(&picks) {
            assert!(p.len() > 2 && p[0] == 0 && p[p.len() - 1] == s.pieces - 1, "{p:?}");
            assert!(p.windows(2).all(|w| w[0] < w[1]), "{p:?}");
        }
        assert_eq!(choose(&splits, 1.0)[0].len(), 2048);
        assert_eq!(choose(&splits, 0.0), [vec![0], vec![0]]);
        assert!(choose(&[], 0.1).is_empty());
    }

    /// Every operator with a bench says how it can be cut, and what it says is true: the reference of some pieces is
    /// those pieces of the reference, to the bit.
    #[test]
    fn pieces_do_not_know_of_each_other() {
        let (mut cut, mut cuttable) = (BTreeMap::new(), BTreeSet::new());
        for op in kiln_kernels::registry() {
            let name = op.info().name;
            for case in op.cases() {
                let inputs = crate::fill::inputs(name, &case);
                let splits = op.splits(&runner::specs(&inputs), &case.params);
                let all = HostProblem { tensors: inputs.clone(), params: case.params.clone() };
                let whole = op.reference(&all).unwrap();
                if !splits.is_empty() {
                    cuttable.insert(name);
                }
                // Each axis alone, then all together.
                for turn in 0..=splits.len() {
                    let used = |i: usize| turn == splits.len() || turn == i;
                    let picks: Vec<Vec<usize>> = (0..splits.len())
                        .map(|i| (0..splits[i].pieces).filter(|p| !used(i) || p % 3 != 1).collect())
                        .collect();
                    if picks.iter().zip(&splits).any(|(p, s)| p.len() < s.pieces) {
                        *cut.entry(name).or_insert(0) += 1;
                    }
                    let problem =
                        HostProblem { tensors: restrict(&splits, &picks, &inputs), params: case.params.clone() };
                    let got = op.reference(&problem).unwrap_or_else(|e| panic!("{name}/{}: {e}", case.id));
                    let want = restrict(&splits, &picks, &whole);
                    // As bytes: a NaN is one too.
                    for (output, want) in &want {
                        assert_eq!(got[output].shape, want.shape, "{name}/{} {output}", case.id);
                        assert!(got[output].data == want.data, "{name}/{} {output} {picks:?}", case.id);
                    }
                }
            }
            let timed = op.info().bench_name.is_some();
            if timed && cuttable.contains(name) {
                assert!(cut.contains_key(name), "{name} has a bench; no case of it was cut by what `splits` says");
            } else if timed {
                // Every output depends on all tokens, or the reference is cheap: judged whole or, when large, not at all.
                assert!(
                    ["moe_fused_mapping", "ep_dispatch_layout"].contains(&name),
                    "{name} says of no case how to cut it"
                );
            }
        }
    }

    /// The first sample of every bench shape is small, whatever the shape: it is what a slow machine has to bear.
    #[test]
    fn first_samples_are_affordable() {
        let large = |op: &str| match op {
            "gemm_fp8_block" => Some([("m", 8192), ("n", 7168), ("k", 4096)].map(|(k, v)| (k.to_string(), v)).to_vec()),
            "topk" => Some(
                [("rows", 64), ("n", 1 << 20), ("k", 2048), ("dtype", 32)].map(|(k, v)| (k.to_string(), v)).to_vec(),
            ),
            _ => None,
        };
        for op in kiln_kernels::registry() {
            let Some(name) = op.info().bench_name else { continue };
            for shape in op.bench_shapes().into_iter().chain(large(name)) {
                let case = op.bench_case(&shape).unwrap();
                let specs = crate::instance::input_specs(&case);
                let splits = op.splits(&specs, &case.params);
                let picks = choose(&splits, FIRST / work(&op.cost(&specs, &case.params)).max(1.0));
                let left = left(op.as_ref(), &specs, &splits, &picks, &case.params);
                if splits.is_empty() || left > WHOLE {
                    // `judge` takes none of them: a group of 8 heads over twice 8192 rows.
                    assert!(splits.is_empty() || name == "mha_prefill", "{name} {shape:?} is never judged");
                    continue;
                }
                // The largest pieces, seconds and not minutes: one query of an indexer over 65536 keys, a group of 1024 rows by
                // 128 columns over 7168 (2.2e9 with its bytes), a head of attention over twice 4096 rows (1.1e10).
                let most = if name == "mha_prefill" { 60.0 } else { 12.0 };
                assert!(left <= most * FIRST, "{name} {shape:?}: {left:e} operations for {picks:?}");
            }
        }
    }

    #[test]
    fn a_wrong_piece_is_found_and_named() {
        let ops = kiln_kernels::registry();
        let op = ops.iter().find(|o| o.info().name == "gemm_bf16").unwrap();
        let shape = [("m", 70), ("n", 40), ("k", 24)].map(|(k, v)| (k.to_string(), v));
        let case = op.bench_case(&shape).unwrap();
        let inputs = crate::fill::inputs("x", &case);
        let problem = HostProblem { tensors: inputs.clone(), params: case.params.clone() };
        let mut outputs = op.reference(&problem).unwrap();
        let good = judge(op.as_ref(), &case, &inputs, &outputs, Duration::from_secs(10)).unwrap().unwrap();
        assert_eq!((good.judged.as_str(), good.rel_err), ("all", 0.0));
        outputs.get_mut("d").unwrap().data[..4].copy_from_slice(&1e6f32.to_le_bytes());
        let bad = judge(op.as_ref(), &case, &inputs, &outputs, Duration::from_secs(10)).unwrap().unwrap();
        assert!(bad.rel_err > 1.0 && bad.worst.is_some_and(|w| !w.verdict.ok && w.output == "d"));
        let splits = op.splits(&runner::specs(&inputs), &case.params);
        let picks = choose(&splits, 0.01);
        let part = restrict(&splits, &picks, &inputs);
        assert_eq!(describe(&splits, &picks, &inputs, &part), "m 4 of 70, n 16 of 40");
    }
}

//! Exact top-k of rows: the indices of the `k` largest values among the first `end[row]` columns.
//!
//! `n = min(k, clamp(end, 0, columns))` entries are chosen, then `k − n` fill entries follow. Equal values keep the smaller
//! index, `-0` equals `+0`, NaN ranks below `−∞` and stays a valid index. An offset is added to indices, never to the fill.
//!
//! *Tensors*: `x` `[rows, columns]` bf16 or f32, rows at any distance; `end`, `output_idx_offset` `[rows]` i32, may be left
//! out; `indices` `[rows, k]` i64 or i32; `values` `[rows, k]` with the parameter `return_value`.
//! *Order*: ascending index (`sorted_index` asks for what is always so); with `sorted`, descending value.
//! *Cost*: one read of the rows and a sample of them; two to four more reads of a row whose candidates are too many or too few.
//! *Numerics*: none; integers that order like the values are compared, so any input gives the same bits everywhere.
//! *Schedule*: one block a row. A sample gives a threshold that a few more than `k` elements reach; one pass collects those,
//! histograms of ever narrower bins find the smallest chosen key among them, and the chosen ones are numbered in order, so
//! no place depends on timing. A row whose guess was wrong goes through the same steps without candidates: the guess costs
//! time, never a result. Short rows are their own candidates.
//! *Source*: Alabi et al., Fast k-selection algorithms for graphics processing units, 2012.

use crate::problem as p;
use dsl::prelude::*;
use kiln_codegen::abi::{Arg, Plan};
use kiln_codegen::host_tensor::HostTensor;
use kiln_codegen::ir::{DType as Data, Literal};
use kiln_codegen::spec::{
    Case, Configs, Cost, Fill, HostProblem, KernelDef, OpError, OpInfo, OpSpec, ParamValue, Params, Problem, Split,
    TensorSpec, Tolerance,
};
use kiln_codegen::tune::ConfigValue;
use std::collections::BTreeMap;
use std::sync::Arc;

/// How a row is read.
#[derive(KernelConfig, Clone, Debug)]
pub struct TopkConfig {
    /// Bits of a digit; a histogram has `2^digit` counters.
    #[tune(11, 10)]
    pub digit: usize,
    /// Warps of a block; 0 lets the problem decide.
    #[tune(0, 8, 16, 32)]
    pub warps: usize,
    /// Elements of a row that are looked at to guess a threshold.
    #[default(2048)]
    pub sample: usize,
    /// Candidates there is room for.
    #[default(4096)]
    pub room: usize,
    /// The whole row is its candidates: it has no more columns than there is room.
    #[default(false)]
    pub direct: bool,
    /// Descending value instead of ascending index.
    #[default(false)]
    pub sorted: bool,
}

/// Bits of a sort key: bf16 values differ in the upper half of theirs only.
fn key_bits(dtype: Data) -> usize {
    if dtype == Data::Bf16 { 16 } else { 32 }
}

/// An unsigned integer that orders as the values do: NaN is the smallest, both zeros are equal.
#[kernel_fn]
pub fn sort_key<T: Float>(x: V<T>) -> V<U32> {
    let v = x.to::<F32>();
    let u = select(v == 0.0, 0u32, v.bits());
    let key = select((u >> 31) == 1, !u, u | 0x8000_0000);
    let key = select(v == v, key, 0u32);
    if host!(key_bits(T::DTYPE) == 16) { key >> 16 } else { key }
}

/// The number whose key is `key`: that of a finite number or an infinity.
#[kernel_fn]
fn number<T: Float>(key: V<U32>) -> V<F32> {
    let wide = if host!(key_bits(T::DTYPE) == 16) { key << 16 } else { key };
    // Keys of negative numbers are complements; what a narrow key lacks is zero in the number.
    let mask = host!(if key_bits(T::DTYPE) == 16 { 0xffff_0000u32 } else { u32::MAX });
    V::<F32>::from_bits(select((wide >> 31) == 1, wide & 0x7fff_ffff, !wide & mask))
}

/// A key such that `rank` or more keys are not smaller, `excess` more than that, `excess` at most `slack` unless all of
/// them are equal to it; and how many of its histogram's bin are needed. All keys that count lie in `low..=top`.
/// `tally(base, reach, shift)` adds one to counter `(key - base) >> shift` for each key with `key - base <= reach`.
#[kernel_fn]
fn search<F: Fn(V<U32>, V<U32>, V<U32>)>(
    counts: Tile<U32, Shared, 1>,
    [low, top]: [V<U32>; 2],
    rank: V<U32>,
    slack: V<U32>,
    tally: F,
) -> [V<U32>; 3] {
    let [bins] = counts.extents();
    let bits = host!(bins.ilog2());
    let range = top - low;
    // Bits of the range: the exponent of the float, which may have been rounded up.
    let width = select(range == 0, 0u32, (range.to::<F32>().bits() >> 23) - 126);
    let mut shift = max(width, bits) - bits;
    let mut base = low;
    let mut reach = range;
    let mut need = rank;
    let mut excess = 0u32;
    loop {
        zero(counts);
        tally(base, reach, shift);
        let above = suffix_sum_exclusive(counts);
        let found = find_first([bins], |b| above[b] < need && above[b] + counts[b] >= need);
        let bin = found.min(bins - 1);
        need = need - above[bin];
        excess = counts[bin] - need;
        base = base + (bin.to::<U32>() << shift);
        if excess <= slack || shift == 0 {
            break;
        }
        reach = (lit::<U32, _>(1u32) << shift) - 1;
        shift = max(shift, bits) - bits;
    }
    [base, need, excess]
}

/// Calls `place(i, key, number)` for the `want` largest keys of `0..len`, smaller `i` first among equals; numbers ascend
/// with `i`.
#[kernel_fn]
fn choose<K: Fn(Ix) -> V<U32>, P: Fn(Ix, V<U32>, V<U32>)>(
    counts: Tile<U32, Shared, 1>,
    span: [V<U32>; 2],
    want: V<U32>,
    len: Ix,
    key_of: K,
    place: P,
) {
    let [bins] = counts.extents();
    let [base, need, excess] = search(counts, span, want, lit(0u32), |base, reach, shift| {
        for i in spread(0..len) {
            let over = key_of(i) - base;
            if over <= reach {
                counts.atomic_add((over >> shift).clamp_index(0, bins - 1), 1);
            }
        }
    });
    // The last element equal to the smallest key that is chosen, if there are more of them than needed.
    let last = shared::<U32, 1>([1]);
    zero(last);
    let mut end = u32::MAX;
    if excess > 0 {
        let mut equal = 0u32;
        for i in spread(0..len) {
            let tie = key_of(i) == base;
            let n = claim(&mut equal, tie);
            if tie && n + 1 == need {
                last.atomic_max(0, i.to::<U32>());
            }
        }
        end = last[0];
    }
    let mut placed = 0u32;
    for i in spread(0..len) {
        let key = key_of(i);
        let pick = key > base || (key == base && i.to::<U32>() <= end);
        let to = claim(&mut placed, pick);
        if pick {
            place(i, key, to);
        }
    }
}

/// Key of positive infinity, the largest.
fn largest_key(dtype: Data) -> u32 {
    0xff80_0000 >> (32 - key_bits(dtype))
}

/// Chooses within rows.
#[kernel(dims(topk: fixed), require(!cfg.direct || n <= cfg.room), deterministic, batch_invariant(rows))]
pub fn topk_select<T: Float, I: IndexInt>(
    cfg: &TopkConfig,
    x: In![T; rows, n; strides(ld, 1)],
    end: Option<In![I32; rows]>,
    offset: Option<In![I32; rows]>,
    indices: Out![I; rows, topk],
    values: Option<Out![T; rows, topk]>,
    index_fill: Scalar![I64],
    value_fill: Scalar![F32],
) {
    let row = grid(rows);
    warps(if cfg.warps == 0 { 16 } else { cfg.warps });
    let len = if let Some(end) = end { end[row].clamp_index(0, n) } else { n };
    let chosen = len.min(topk);
    let want = chosen.to::<U32>();
    let first = if let Some(offset) = offset { offset[row].to::<I>() } else { V::<I>::of(0.0) };

    for j in parallel([topk]) {
        if j >= chosen {
            indices[(row, j)] = index_fill.to::<I>();
            if let Some(values) = values {
                values[(row, j)] = value_fill.to::<T>();
            }
        }
    }

    if want > 0 {
        let room = cfg.room;
        let bins = host!(1usize << cfg.digit);
        let counts = shared::<U32, 1>([bins]);
        let keys = shared::<U32, 1>([room]);
        let columns = shared::<U32, 1>([if cfg.direct { 1 } else { room }]);
        let best_key = shared::<U32, 1>([if cfg.sorted { topk } else { 1 }]);
        let best_at = shared::<U32, 1>([if cfg.sorted { topk } else { 1 }]);
        if cfg.sorted {
            zero(best_key);
            zero(best_at);
        }
        let place = |column: V<U32>, key: V<U32>, to: V<U32>| {
            if cfg.sorted {
                best_key.put(to, key);
                best_at.put(to, column);
            } else {
                indices.put((row, to), first + column.to::<I>());
                if let Some(values) = values {
                    values.put((row, to), x[(row, column.clamp_index(0, n - 1))]);
                }
            }
        };

        // Candidates: keys and columns of all elements not smaller than `low`, in ascending order of columns.
        let mut found = 0u32;
        let mut low = 0u32;
        let all = || {
            for i in parallel([room]) {
                if cfg.direct || i < len {
                    keys[i] = sort_key(x[(row, i)]);
                    if !cfg.direct {
                        columns[i] = i.to::<U32>();
                    }
                }
            }
        };
        if cfg.direct {
            all();
            found = len.to::<U32>();
        } else if len <= room {
            all();
            found = len.to::<U32>();
        } else {
            // As many as one sector of memory holds lie side by side.
            let side = host!(256 / T::DTYPE.bits());
            let sample = host!(cfg.sample.max(side));
            let stride = len / sample * side;
            let drawn = frag::<U32, 1>([sample]);
            for s in parallel([sample]) {
                drawn[s] = sort_key(x[(row, s / side * stride + s % side)]);
            }
            let top = tile_max([sample], |s| drawn[s]);
            // With this rank in the sample, fewer than wanted lie above for one row in thirty thousand.
            let mean = want.to::<F32>() * host!(sample as f32) / len.value().to::<F32>();
            // Half of the exponent: no less than the root, and six in a hundred more at most. Every target gives these bits.
            let root = V::<F32>::from_bits((mean.bits() >> 1) + 0x1fc0_0000);
            let rank = min((mean + root * 4.0 + 4.0).to::<I32>().to::<U32>(), host!(sample as u32));
            let [guess, _, _] = search(counts, [lit(0u32), top], rank, rank >> 3, |base, reach, shift| {
                for s in parallel([sample]) {
                    let over = drawn[s] - base;
                    if over <= reach {
                        counts.atomic_add((over >> shift).clamp_index(0, bins - 1), 1);
                    }
                }
            });
            low = guess;
            let least = number::<T>(guess);
            for i in spread(0..len) {
                let v = x[(row, i)];
                let keep = v.to::<F32>() >= least;
                let to = claim(&mut found, keep);
                if keep {
                    keys.put(to, sort_key(v));
                    columns.put(to, i.to::<U32>());
                }
            }
        }

        let among = || {
            let count = found.clamp_index(0, room);
            let top = tile_max([room], |c| if c < count { keys[c] } else { lit(0u32) });
            choose(
                counts,
                [low, top],
                want,
                count,
                |c| keys[c],
                |c, key, to| place(if cfg.direct { c.to::<U32>() } else { columns[c] }, key, to),
            );
        };
        if cfg.direct {
            among();
        } else if found >= want && found <= host!(room as u32) {
            among();
        } else {
            // The guess was too high, or too many elements are alike: the whole row instead of candidates.
            let span = [lit(0u32), lit(host!(largest_key(T::DTYPE)))];
            choose(counts, span, want, len, |i| sort_key(x[(row, i)]), |i, key, to| place(i.to::<U32>(), key, to));
        }

        if cfg.sorted {
            // The place of each is the number of better ones; equal ones stand in index order already.
            for j in parallel([topk]) {
                if j < chosen {
                    let key = best_key[j];
                    let mut better = 0u32;
                    for o in 0..chosen {
                        let other = best_key[o];
                        better += select(other > key || (other == key && o < j), 1, 0);
                    }
                    let at = best_at[j].clamp_index(0, n);
                    indices.put((row, better), first + at.to::<I>());
                    if let Some(values) = values {
                        values.put((row, better), x[(row, at)]);
                    }
                }
            }
        }
    }
}

/// The indices of the `k` largest of `row`, best first: by sorting all of them.
pub fn reference(row: &[f64], k: usize) -> Vec<usize> {
    let mut order: Vec<usize> = (0..row.len()).collect();
    // NaN is the smallest; a stable sort keeps equal values, and so both zeros, in index order.
    let rank = |i: usize| (!row[i].is_nan(), row[i]);
    order.sort_by(|&a, &b| rank(b).partial_cmp(&rank(a)).unwrap_or(std::cmp::Ordering::Equal));
    order.truncate(k);
    order
}

/// The operator.
#[derive(Clone, Copy, Debug)]
pub struct TopkSelect;

const OP: &str = "topk_select";
const TYPES: [Data; 2] = [Data::Bf16, Data::F32];

fn kernel_for(x: Data, index: Data) -> Arc<dyn KernelDef> {
    match (x == Data::F32, index == Data::I32) {
        (false, false) => topk_select::kernel::<Bf16, I64>(),
        (false, true) => topk_select::kernel::<Bf16, I32>(),
        (true, false) => topk_select::kernel::<F32, I64>(),
        (true, true) => topk_select::kernel::<F32, I32>(),
    }
}

/// What a problem asks for.
struct Shape {
    rows: usize,
    columns: usize,
    k: usize,
    dtype: Data,
    index: Data,
    sorted: bool,
    values: bool,
    index_fill: i64,
    value_fill: f64,
}

/// Columns of a row that is not sampled.
const DIRECT: usize = 8192;

/// How many elements are sampled, and how many candidates there is room for.
fn sizes(s: &Shape) -> [(&'static str, ConfigValue); 3] {
    let n = s.columns;
    let sample = (n / 32).next_power_of_two().clamp(2048, 16384);
    let direct = n <= DIRECT;
    let room = if direct {
        n.next_multiple_of(if n > 1024 { 1024 } else { 32 }).max(32)
    } else {
        let mean = s.k.min(n) as f64 * sample as f64 / n as f64;
        let rank = mean + 4.25 * mean.sqrt() + 4.0;
        // What a rank in the sample is worth, with its slack and five times its deviation.
        let most = (rank * 1.125 + 5.0 * rank.sqrt()) * n as f64 / sample as f64;
        (most as usize).next_multiple_of(512).min(16384)
    };
    [("sample", ConfigValue::Int(sample)), ("room", ConfigValue::Int(room)), ("direct", ConfigValue::Bool(direct))]
}

/// Few rows have a multiprocessor each; many share one.
fn warps_for(s: &Shape) -> usize {
    match (s.columns <= DIRECT, s.rows) {
        (true, 0..1024) => 16,
        (true, _) => 8,
        (false, 0..=132) => 32,
        (false, _) => 16,
    }
}

/// A number, which may be infinite and then is a word.
fn extended(params: &Params, name: &str, default: f64) -> Result<f64, OpError> {
    match params.get(name) {
        Some(ParamValue::Text(t)) => {
            t.parse().map_err(|_| p::refuse(OP, format!("parameter `{name}` is `{t}`; expected a number")))
        }
        _ => p::number(OP, params, name, Some(default)),
    }
}

fn shape_of(specs: &p::Specs, params: &Params) -> Result<Shape, OpError> {
    let x = p::input(OP, specs, "x", &TYPES, 2)?;
    for name in ["end", "output_idx_offset"] {
        if let Some(t) = p::optional_input(OP, specs, name, &[Data::I32], 1)? {
            p::shaped(OP, t, &x.shape[..1], "one entry a row of `x`")?;
        }
    }
    let sorted = p::flag(OP, params, "sorted", false)?;
    if sorted && p::flag(OP, params, "sorted_index", false)? {
        return Err(p::refuse(OP, "`sorted` and `sorted_index` exclude each other; choose one order"));
    }
    let index = p::word(OP, params, "indices_type", &["i64", "i32"])?;
    Ok(Shape {
        rows: x.shape[0],
        columns: x.shape[1],
        k: p::count(OP, params, "k", None)?,
        dtype: x.dtype,
        index: if index == "i32" { Data::I32 } else { Data::I64 },
        sorted,
        values: p::flag(OP, params, "return_value", false)?,
        index_fill: p::number(OP, params, "idx_oob_fill_value", Some(i32::MAX as f64))? as i64,
        value_fill: extended(params, "value_oob_fill_value", f64::NEG_INFINITY)?,
    })
}

impl OpSpec for TopkSelect {
    fn info(&self) -> OpInfo {
        OpInfo {
            name: OP,
            bench_name: Some("topk"),
            family: "index",
            formula: "indices = the k largest of x[.., ..end], smaller index first among equals",
            source: "Alabi et al., 2012",
        }
    }
    fn kernels(&self) -> Vec<Arc<dyn KernelDef>> {
        TYPES.into_iter().flat_map(|x| [Data::I64, Data::I32].map(|i| kernel_for(x, i))).collect()
    }
    fn outputs(&self, specs: &BTreeMap<String, TensorSpec>, params: &Params) -> Result<Vec<TensorSpec>, OpError> {
        let s = shape_of(specs, params)?;
        let mut outputs = vec![p::spec("indices", s.index, &[s.rows, s.k])];
        if s.values {
            outputs.push(p::spec("values", s.dtype, &[s.rows, s.k]));
        }
        Ok(outputs)
    }
    fn plan(&self, problem: &Problem, configs: &dyn Configs) -> Result<Plan, OpError> {
        let s = shape_of(&p::checked(self, problem)?, &problem.params)?;
        let kernel = kernel_for(s.dtype, s.index);
        let mut config = p::choose(configs, &kernel, &[("rows", s.rows), ("n", s.columns), ("topk", s.k)]);
        p::set(&mut config, "sorted", ConfigValue::Bool(s.sorted));
        for (name, value) in sizes(&s) {
            p::set(&mut config, name, value);
        }
        if config.0.get("warps") == Some(&ConfigValue::Int(0)) {
            p::set(&mut config, "warps", ConfigValue::Int(warps_for(&s)));
        }
        let args = vec![
            p::arg(OP, problem, "x")?,
            p::optional_arg(problem, "end"),
            p::optional_arg(problem, "output_idx_offset"),
            p::arg(OP, problem, "indices")?,
            if s.values { p::arg(OP, problem, "values")? } else { Arg::Absent },
            Arg::Scalar(Literal { dtype: Data::I64, bits: s.index_fill as u64 }),
            Arg::Scalar(Literal::f32(s.value_fill as f32)),
        ];
        Ok(p::single(kernel, config, args))
    }
    fn reference(&self, problem: &HostProblem) -> Result<BTreeMap<String, HostTensor>, OpError> {
        let s = shape_of(&p::host_specs(self, problem)?, &problem.params)?;
        let x = p::numbers(OP, problem, "x")?;
        let column = |name: &str, default: f64| match problem.tensors.get(name) {
            Some(t) => t.to_f64(),
            None => vec![default; s.rows],
        };
        let (ends, offsets) = (column("end", s.columns as f64), column("output_idx_offset", 0.0));
        let (mut indices, mut values) = (vec![], vec![]);
        for row in 0..s.rows {
            let end = ends[row].clamp(0.0, s.columns as f64) as usize;
            let line = &x[row * s.columns..][..end];
            let mut best = reference(line, s.k);
            if !s.sorted {
                best.sort_unstable();
            }
            let fill = s.k - best.len();
            indices.extend(best.iter().map(|&i| i as i64 + offsets[row] as i64));
            indices.extend(vec![s.index_fill; fill]);
            values.extend(best.iter().map(|&i| line[i]));
            values.extend(vec![s.value_fill; fill]);
        }
        let data = match s.index {
            Data::I32 => indices.iter().flat_map(|&i| (i as i32).to_le_bytes()).collect(),
            _ => indices.iter().flat_map(|i| i.to_le_bytes()).collect(),
        };
        let indices = HostTensor { dtype: s.index, shape: vec![s.rows, s.k], data };
        let mut outputs: BTreeMap<String, HostTensor> = [("indices".into(), indices)].into();
        if s.values {
            outputs.insert("values".into(), HostTensor::from_f64(s.dtype, &[s.rows, s.k], &values));
        }
        Ok(outputs)
    }
    fn splits(&self, specs: &BTreeMap<String, TensorSpec>, params: &Params) -> Vec<Split> {
        let Ok(s) = shape_of(specs, params) else { return vec![] };
        let cut = ["x", "end", "output_idx_offset", "indices", "values"].map(|name| (name, 0, 1));
        vec![p::split("rows", s.rows, 1, &cut)]
    }
    fn tolerance(&self, _: &str, _: &Params) -> Tolerance {
        Tolerance::BitExact
    }
    fn cases(&self) -> Vec<Case> {
        let make = |id: &str, dtype, [rows, columns, k]: [usize; 3], fill: Fill, params: &[(&str, ParamValue)]| {
            let mut all = vec![("k", ParamValue::Int(k as i64))];
            all.extend(params.iter().cloned());
            p::case(id, vec![p::filled("x", dtype, &[rows, columns], fill)], &all)
        };
        let with = |mut case: Case, name: &str, numbers: &[f64]| {
            case.inputs.push(p::filled(name, Data::I32, &[numbers.len()], Fill::Values(numbers.to_vec())));
            case
        };
        let (bf16, f32) = (Data::Bf16, Data::F32);
        let (yes, values) = (ParamValue::Bool(true), ("return_value", ParamValue::Bool(true)));
        let narrow = ("indices_type", ParamValue::Text("i32".into()));
        let few = Fill::Values((0..300).map(|i| [0.5, -0.0, 0.0, f64::INFINITY, -3.0][i % 5]).collect());
        let odd = Fill::Values((0..60).map(|i| [f64::NAN, f64::NEG_INFINITY, 1.0][i % 3]).collect());
        vec![
            make("no_rows", f32, [0, 100, 7], Fill::Normal(1.0), &[]),
            make("r3_n5000_k100_f32", f32, [3, 5000, 100], Fill::Normal(1.0), std::slice::from_ref(&values)),
            make("r2_n9000_k33_bf16_i32", bf16, [2, 9000, 33], Fill::Normal(1.0), &[narrow, values.clone()]),
            make("ties", f32, [2, 150, 40], few.clone(), std::slice::from_ref(&values)),
            make("sorted", f32, [2, 150, 40], few, &[("sorted", yes.clone()), values.clone()]),
            make("sorted_bf16", bf16, [2, 700, 64], Fill::Normal(1.0), &[("sorted", yes), values.clone()]),
            make("nan_below_all", f32, [2, 30, 25], odd, &[]),
            with(
                with(
                    make("ends_offsets", bf16, [4, 90, 8], Fill::Normal(1.0), &[values]),
                    "end",
                    &[-5.0, 3.0, 1000.0, 50.0],
                ),
                "output_idx_offset",
                &[1.0, 2e9, -7.0, 0.0],
            ),
        ]
    }
    fn bench_keys(&self) -> &'static [&'static str] {
        &["rows", "n", "k", "dtype"]
    }
    fn bench_shapes(&self) -> Vec<Vec<(String, usize)>> {
        let keys = self.bench_keys();
        let shape = |sizes: [usize; 4]| keys.iter().map(|k| k.to_string()).zip(sizes).collect();
        [[64, 131_072, 512, 32], [64, 131_072, 2048, 32], [4096, 131_072, 512, 16], [256, 131_072, 512, 16]]
            .map(shape)
            .into()
    }
    fn bench_case(&self, shape: &[(String, usize)]) -> Result<Case, OpError> {
        // The element type is named by its bits: 16 for bf16, 32 for f32.
        let [rows, n, k, bits] = p::bench_sizes(OP, shape, ["rows", "n", "k", "dtype"])?;
        let dtype = match bits {
            16 => Data::Bf16,
            32 => Data::F32,
            _ => return Err(p::refuse(OP, format!("shape key `dtype` is {bits}; expected 16 for bf16 or 32 for f32"))),
        };
        let params = [("k", ParamValue::Int(k as i64)), ("indices_type", ParamValue::Text("i32".into()))];
        let x = p::filled("x", dtype, &[rows, n], Fill::Normal(1.0));
        Ok(p::case(format!("rows{rows}_n{n}_k{k}_{dtype}"), vec![x], &params))
    }
    fn cost(&self, specs: &BTreeMap<String, TensorSpec>, params: &Params) -> Cost {
        let (Ok(outputs), Ok(x)) = (self.outputs(specs, params), p::input(OP, specs, "x", &TYPES, 2)) else {
            return Cost::default();
        };
        let written: Vec<_> = outputs.iter().chain([x]).collect();
        Cost { flops: p::product(&x.shape), bytes: p::bytes(&written) }
    }
}

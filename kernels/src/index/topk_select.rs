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
//! time, never a result. Short rows are their own candidates. Few long rows are cut into slices that blocks of their own
//! choose in; a second launch chooses among what they chose.
//! *Source*: Alabi et al., Fast k-selection algorithms for graphics processing units, 2012.

use super::largest::{TopkConfig, choose, pick, write_sorted};
use crate::problem as p;
use dsl::prelude::*;
use kiln_codegen::abi::{Arg, Launch, Plan};
use kiln_codegen::host_tensor::HostTensor;
use kiln_codegen::ir::{DType as Data, Literal};
use kiln_codegen::spec::{
    Case, Configs, Cost, Fill, HostProblem, KernelDef, OpError, OpInfo, OpSpec, ParamValue, Params, Problem, Split,
    TensorSpec, Tolerance,
};
use kiln_codegen::tune::ConfigValue;
use std::collections::BTreeMap;
use std::sync::Arc;

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
        let best = [0, 1].map(|_| shared::<U32, 1>([if cfg.sorted { topk } else { 1 }]));
        if cfg.sorted {
            zero(best[0]);
            zero(best[1]);
        }
        let write = |column: V<U32>, to: V<U32>| {
            indices.put((row, to), first + column.to::<I>());
            if let Some(values) = values {
                values.put((row, to), x[(row, column.clamp_index(0, n - 1))]);
            }
        };
        pick(
            cfg,
            [len * 0, len],
            want,
            |i| x[(row, i)],
            |column, key, to| {
                if cfg.sorted {
                    best[0].put(to, key);
                    best[1].put(to, column);
                } else {
                    write(column, to);
                }
            },
        );
        if cfg.sorted {
            write_sorted(best, chosen, write);
        }
    }
}

/// Chooses within slices of rows: their best keys and columns, in ascending order of columns, and zeros where a slice has
/// too few.
#[kernel(dims(topk: fixed), require(!cfg.direct || n <= cfg.room * cfg.parts), deterministic, batch_invariant(rows))]
pub fn topk_slices<T: Float>(
    cfg: &TopkConfig,
    x: In![T; rows, n; strides(ld, 1)],
    end: Option<In![I32; rows]>,
    best_keys: Out![U32; rows, parts, topk],
    best_columns: Out![U32; rows, parts, topk],
) {
    let (row, part) = grid((rows, parts));
    warps(if cfg.warps == 0 { 16 } else { cfg.warps });
    let len = if let Some(end) = end { end[row].clamp_index(0, n) } else { n };
    let size = n.div_ceil(cfg.parts * SLICE_STEP) * SLICE_STEP;
    let lo = (part * size).min(len);
    let hi = (part * size + size).min(len);
    let chosen = (hi - lo).min(topk);
    let want = chosen.to::<U32>();
    for j in parallel([topk]) {
        if j >= chosen {
            best_keys[(row, part, j)] = lit(0u32);
            best_columns[(row, part, j)] = lit(0u32);
        }
    }
    if want > 0 {
        pick(
            cfg,
            [lo, hi],
            want,
            |i| x[(row, i)],
            |column, key, to| {
                best_keys.put((row, part, to), key);
                best_columns.put((row, part, to), column);
            },
        );
    }
}

/// Chooses among the best of the slices of a row. Slices before the end of a row are full, so what they gave stands without
/// gaps, in ascending order of columns.
#[kernel(dims(topk: fixed), require(m <= cfg.room), deterministic, batch_invariant(rows))]
pub fn topk_merge<T: Float, I: IndexInt>(
    cfg: &TopkConfig,
    x: In![T; rows, n; strides(ld, 1)],
    end: Option<In![I32; rows]>,
    offset: Option<In![I32; rows]>,
    best_keys: In![U32; rows, m],
    best_columns: In![U32; rows, m],
    indices: Out![I; rows, topk],
    values: Option<Out![T; rows, topk]>,
    index_fill: Scalar![I64],
    value_fill: Scalar![F32],
) {
    let row = grid(rows);
    warps(if cfg.warps == 0 { 32 } else { cfg.warps });
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
        let size = n.div_ceil(cfg.parts * SLICE_STEP) * SLICE_STEP;
        let mut given = 0u32;
        for part in 0..cfg.parts {
            let slice = (size * (part + 1)).min(len) - (size * part).min(len);
            given += slice.min(topk).to::<U32>();
        }
        let room = cfg.room;
        let count = given.clamp_index(0, room);
        let counts = shared::<U32, 1>([host!(1usize << cfg.digit)]);
        let keys = shared::<U32, 1>([room]);
        for c in parallel([room]) {
            keys[c] = best_keys[(row, c)];
        }
        let best = [0, 1].map(|_| shared::<U32, 1>([if cfg.sorted { topk } else { 1 }]));
        if cfg.sorted {
            zero(best[0]);
            zero(best[1]);
        }
        let write = |column: V<U32>, to: V<U32>| {
            indices.put((row, to), first + column.to::<I>());
            if let Some(values) = values {
                values.put((row, to), x[(row, column.clamp_index(0, n - 1))]);
            }
        };
        // As many as are wanted are in the first slice.
        let low = tile_min([topk], |c| if c < chosen { keys[c] } else { lit(u32::MAX) });
        let top = tile_max([room], |c| if c < count { keys[c] } else { lit(0u32) });
        choose(
            counts,
            [low, top],
            want,
            [count * 0, count],
            |c| keys[c],
            |c, key, to| {
                let column = best_columns[(row, c)];
                if cfg.sorted {
                    best[0].put(to, key);
                    best[1].put(to, column);
                } else {
                    write(column, to);
                }
            },
        );
        if cfg.sorted {
            write_sorted(best, chosen, write);
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

fn slices_for(x: Data, index: Data) -> [Arc<dyn KernelDef>; 2] {
    match (x == Data::F32, index == Data::I32) {
        (false, false) => [topk_slices::kernel::<Bf16>(), topk_merge::kernel::<Bf16, I64>()],
        (false, true) => [topk_slices::kernel::<Bf16>(), topk_merge::kernel::<Bf16, I32>()],
        (true, false) => [topk_slices::kernel::<F32>(), topk_merge::kernel::<F32, I64>()],
        (true, true) => [topk_slices::kernel::<F32>(), topk_merge::kernel::<F32, I32>()],
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
/// Slices begin at multiples of this many columns.
const SLICE_STEP: usize = 64;
/// Rows up to this long are not cut.
const WHOLE: usize = 32768;
/// What slices give fits in shared memory beside the rest.
const GIVEN: usize = 16384;

/// Blocks that share a row, if it is long and there are few: as many as a chip of 132 multiprocessors runs at once.
fn parts_for(s: &Shape) -> usize {
    let most = [132 / s.rows.max(1), s.columns / DIRECT, GIVEN / s.k.max(1), 64].into_iter().min().unwrap_or(1);
    match most {
        2.. if s.columns >= WHOLE && s.k <= DIRECT / 2 => 1 << most.ilog2(),
        _ => 1,
    }
}

/// How many of `n` elements are sampled, and how many candidates there is room for.
fn sizes(s: &Shape, n: usize) -> [(&'static str, ConfigValue); 3] {
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
fn warps_for(rows: usize, columns: usize) -> usize {
    match (columns <= DIRECT, rows) {
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
        let types = || TYPES.into_iter().flat_map(|x| [Data::I64, Data::I32].map(|i| (x, i)));
        let mut all: Vec<_> = types().map(|(x, i)| kernel_for(x, i)).collect();
        all.extend([topk_slices::kernel::<Bf16>(), topk_slices::kernel::<F32>()]);
        all.extend(types().map(|(x, i)| slices_for(x, i)[1].clone()));
        all
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
        let parts = parts_for(&s);
        let slice = s.columns.div_ceil(parts);
        let slice = if parts > 1 { slice.next_multiple_of(SLICE_STEP) } else { slice };
        let config_of = |kernel: &Arc<dyn KernelDef>, rows: usize, n: usize| {
            let mut config = p::choose(configs, kernel, &[("rows", s.rows), ("n", s.columns), ("topk", s.k)]);
            p::set(&mut config, "sorted", ConfigValue::Bool(s.sorted));
            p::set(&mut config, "parts", ConfigValue::Int(parts));
            for (name, value) in sizes(&s, n) {
                p::set(&mut config, name, value);
            }
            if config.0.get("warps") == Some(&ConfigValue::Int(0)) {
                p::set(&mut config, "warps", ConfigValue::Int(warps_for(rows, n)));
            }
            config
        };
        let (x, end) = (p::arg(OP, problem, "x")?, p::optional_arg(problem, "end"));
        let mut args = vec![x.clone(), end.clone(), p::optional_arg(problem, "output_idx_offset")];
        let mut results = vec![
            p::arg(OP, problem, "indices")?,
            if s.values { p::arg(OP, problem, "values")? } else { Arg::Absent },
            Arg::Scalar(Literal { dtype: Data::I64, bits: s.index_fill as u64 }),
            Arg::Scalar(Literal::f32(s.value_fill as f32)),
        ];
        if parts == 1 {
            args.append(&mut results);
            let kernel = kernel_for(s.dtype, s.index);
            let config = config_of(&kernel, s.rows, s.columns);
            return Ok(p::single(kernel, config, args));
        }
        let given = parts * s.k;
        let part = |index: usize, shape: &[usize]| Arg::Workspace {
            index,
            dtype: Data::U32,
            shape: shape.to_vec(),
            offset_bytes: 0,
        };
        let [slices, merge] = slices_for(s.dtype, s.index);
        let cut = [s.rows, parts, s.k];
        let first = Launch {
            config: config_of(&slices, s.rows * parts, slice),
            kernel: slices,
            args: vec![x, end, part(0, &cut), part(1, &cut)],
        };
        args.extend([part(0, &[s.rows, given]), part(1, &[s.rows, given])]);
        args.append(&mut results);
        let mut config = config_of(&merge, s.rows, given.min(DIRECT));
        p::set(&mut config, "room", ConfigValue::Int(given.next_multiple_of(32)));
        let second = Launch { config, kernel: merge, args };
        Ok(Plan { steps: vec![first, second], workspaces: vec![4 * s.rows * given; 2] })
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
            make("slices", f32, [2, 33000, 60], Fill::Normal(1.0), std::slice::from_ref(&values)),
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

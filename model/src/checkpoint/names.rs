//! Which tensors a configuration needs: published names, shapes, and in which formats they may be stored; and what a
//! checkpoint has instead.
//!
//! Pure but for the headers of an opened checkpoint. Prediction layers of V3 and the vision tower of V4.1 are counted and not
//! checked, since this crate does not run them.

use super::safetensors::Entry;
use super::shard::{Checkpoint, FP4_GROUP, scale_names};
use crate::config::{Compressed, Config, Family, Moe, OVERLAPPING, V3, V4, V41};
use kiln_codegen::ir::DType;
use std::collections::BTreeSet;
use std::path::PathBuf;

/// How a tensor may be stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Storage {
    /// bf16, f16 or f32.
    Plain,
    /// As `Plain`, or e4m3 with a scale for each block.
    Linear,
    /// As `Linear`, or pairs of e2m1 in bytes with a scale for 32 columns.
    Expert,
    /// As `Plain`, or e4m3 with a scale for 32 columns of a row.
    Table,
    /// f32.
    Exact,
    /// i64.
    Ids,
}

/// A tensor a model needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Expected {
    /// Name.
    pub name: String,
    /// Shape, of e2m1 before packing.
    pub shape: Vec<usize>,
    /// Formats.
    pub storage: Storage,
    /// May be left out.
    pub optional: bool,
}

/// What is wrong with a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultKind {
    /// Not in any file.
    Missing,
    /// In a file, and nothing needs it.
    Extra,
    /// Another shape or dtype.
    Wrong,
}

/// One tensor that is not as expected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// In which way.
    pub kind: FaultKind,
    /// Name.
    pub tensor: String,
    /// The file it is in, or the folder it is not in.
    pub file: PathBuf,
    /// What is needed.
    pub expected: String,
    /// What is there.
    pub got: String,
}

struct List(Vec<Expected>);

impl List {
    fn add(&mut self, name: String, shape: &[usize], storage: Storage) {
        self.0.push(Expected { name, shape: shape.to_vec(), storage, optional: false });
    }
    fn linear(&mut self, prefix: &str, name: &str, out: usize, input: usize) {
        self.add(format!("{prefix}.{name}.weight"), &[out, input], Storage::Linear);
    }
    fn plain(&mut self, prefix: &str, name: &str, shape: &[usize]) {
        self.add(format!("{prefix}.{name}"), shape, Storage::Plain);
    }
    fn exact(&mut self, prefix: &str, name: &str, shape: &[usize]) {
        self.add(format!("{prefix}.{name}"), shape, Storage::Exact);
    }
}

/// Every tensor of a model, scales not among them.
pub fn expected(c: &Config) -> Vec<Expected> {
    let mut l = List(vec![]);
    match &c.family {
        Family::V3(f) => v3(c, f, &mut l),
        Family::V4(f) => v4(c, f, &mut l),
        Family::V41(f) => v41(c, f, &mut l),
    }
    l.0
}

fn v3(c: &Config, f: &V3, l: &mut List) {
    let (d, heads, turned) = (c.hidden_size, c.num_attention_heads, c.rope.qk_rope_head_dim);
    l.add("model.embed_tokens.weight".into(), &[c.vocab_size, d], Storage::Plain);
    l.add("model.norm.weight".into(), &[d], Storage::Plain);
    l.add("lm_head.weight".into(), &[c.vocab_size, d], Storage::Plain);
    for i in 0..c.num_hidden_layers {
        let p = format!("model.layers.{i}");
        let (a, m) = (format!("{p}.self_attn"), format!("{p}.mlp"));
        l.plain(&p, "input_layernorm.weight", &[d]);
        l.plain(&p, "post_attention_layernorm.weight", &[d]);
        l.linear(&a, "q_a_proj", f.q_lora_rank, d);
        l.plain(&a, "q_a_layernorm.weight", &[f.q_lora_rank]);
        l.linear(&a, "q_b_proj", heads * (f.qk_nope_head_dim + turned), f.q_lora_rank);
        l.linear(&a, "kv_a_proj_with_mqa", f.kv_lora_rank + turned, d);
        l.plain(&a, "kv_a_layernorm.weight", &[f.kv_lora_rank]);
        l.linear(&a, "kv_b_proj", heads * (f.qk_nope_head_dim + f.v_head_dim), f.kv_lora_rank);
        l.linear(&a, "o_proj", d, heads * f.v_head_dim);
        if let Some(x) = f.indexer {
            let i = format!("{a}.indexer");
            l.linear(&i, "wq_b", x.index_n_heads * x.index_head_dim, f.q_lora_rank);
            l.linear(&i, "wk", x.index_head_dim, d);
            l.plain(&i, "k_norm.weight", &[x.index_head_dim]);
            l.plain(&i, "k_norm.bias", &[x.index_head_dim]);
            l.plain(&i, "weights_proj.weight", &[x.index_n_heads, d]);
        }
        let mut mlp = |prefix: &str, inner: usize| {
            l.linear(prefix, "gate_proj", inner, d);
            l.linear(prefix, "up_proj", inner, d);
            l.linear(prefix, "down_proj", d, inner);
        };
        if i < f.first_k_dense_replace {
            mlp(&m, f.intermediate_size);
            continue;
        }
        for e in 0..c.moe.n_routed_experts {
            mlp(&format!("{m}.experts.{e}"), c.moe.moe_intermediate_size);
        }
        mlp(&format!("{m}.shared_experts"), c.moe.moe_intermediate_size * c.moe.n_shared_experts);
        l.plain(&m, "gate.weight", &[c.moe.n_routed_experts, d]);
        l.exact(&m, "gate.e_score_correction_bias", &[c.moe.n_routed_experts]);
    }
}

/// Streams, norms, attention without its compressor, and experts of one layer of V4 or V4.1.
fn block(c: &Config, a: &Compressed, p: &str, moe: &Moe, hash: bool, l: &mut List) {
    let (d, n) = (c.hidden_size, a.hyper.hc_mult);
    for site in ["attn", "ffn"] {
        l.plain(p, &format!("{site}_norm.weight"), &[d]);
        l.exact(p, &format!("hc_{site}_fn"), &[n * (n + 2), n * d]);
        l.exact(p, &format!("hc_{site}_base"), &[n * (n + 2)]);
        l.exact(p, &format!("hc_{site}_scale"), &[3]);
    }
    let (q, heads) = (format!("{p}.attn"), c.num_attention_heads);
    l.linear(&q, "wq_a", a.q_lora_rank, d);
    l.plain(&q, "q_norm.weight", &[a.q_lora_rank]);
    l.linear(&q, "wq_b", heads * a.head_dim, a.q_lora_rank);
    l.linear(&q, "wkv", a.head_dim, d);
    l.plain(&q, "kv_norm.weight", &[a.head_dim]);
    l.exact(&q, "attn_sink", &[heads]);
    l.linear(&q, "wo_a", a.o_groups * a.o_lora_rank, heads * a.head_dim / a.o_groups);
    l.linear(&q, "wo_b", d, a.o_groups * a.o_lora_rank);
    let f = format!("{p}.ffn");
    l.plain(&f, "gate.weight", &[moe.n_routed_experts, d]);
    if hash {
        l.add(format!("{f}.gate.tid2eid"), &[c.vocab_size, moe.num_experts_per_tok], Storage::Ids);
    } else {
        l.exact(&f, "gate.bias", &[moe.n_routed_experts]);
    }
    let inner = moe.moe_intermediate_size;
    let mut expert = |prefix: String, inner: usize, storage| {
        for (name, shape) in [("w1", [inner, d]), ("w2", [d, inner]), ("w3", [inner, d])] {
            l.add(format!("{prefix}.{name}.weight"), &shape, storage);
        }
    };
    for e in 0..moe.n_routed_experts {
        expert(format!("{f}.experts.{e}"), inner, Storage::Expert);
    }
    expert(format!("{f}.shared_experts"), inner * moe.n_shared_experts, Storage::Linear);
}

/// Embedding, head and last norm of V4 and V4.1.
fn ends(c: &Config, l: &mut List) {
    l.add("embed.weight".into(), &[c.vocab_size, c.hidden_size], Storage::Plain);
    l.add("head.weight".into(), &[c.vocab_size, c.hidden_size], Storage::Plain);
    l.add("norm.weight".into(), &[c.hidden_size], Storage::Plain);
}

fn head_collapse(c: &Config, a: &Compressed, prefix: &str, l: &mut List) {
    let n = a.hyper.hc_mult;
    l.add(format!("{prefix}hc_head_fn"), &[n, n * c.hidden_size], Storage::Exact);
    l.add(format!("{prefix}hc_head_base"), &[n], Storage::Exact);
    l.add(format!("{prefix}hc_head_scale"), &[1], Storage::Exact);
}

fn v4(c: &Config, f: &V4, l: &mut List) {
    let (a, d) = (&f.attention, c.hidden_size);
    ends(c, l);
    head_collapse(c, a, "", l);
    for i in 0..c.num_hidden_layers {
        let p = format!("layers.{i}");
        block(c, a, &p, &c.moe, i < f.num_hash_layers, l);
        let ratio = a.compress_ratios.get(i).copied().unwrap_or(0);
        let mut compressor = |prefix: &str, width: usize| {
            let wide = if ratio == OVERLAPPING { 2 * width } else { width };
            l.exact(prefix, "ape", &[ratio, wide]);
            l.plain(prefix, "wkv.weight", &[wide, d]);
            l.plain(prefix, "wgate.weight", &[wide, d]);
            l.plain(prefix, "norm.weight", &[width]);
        };
        if ratio > 0 {
            compressor(&format!("{p}.attn.compressor"), a.head_dim);
        }
        if ratio == OVERLAPPING {
            let x = a.indexer;
            compressor(&format!("{p}.attn.indexer.compressor"), x.index_head_dim);
            let i = format!("{p}.attn.indexer");
            l.linear(&i, "wq_b", x.index_n_heads * x.index_head_dim, a.q_lora_rank);
            l.plain(&i, "weights_proj.weight", &[x.index_n_heads, d]);
        }
    }
    if a.dspark.is_some() {
        drafter(c, a, ["markov_w1.weight", "markov_w2.weight"], true, l);
    } else if c.num_nextn_predict_layers > 0 {
        for s in 0..c.num_nextn_predict_layers {
            let p = format!("mtp.{s}");
            block(c, a, &p, &c.moe, false, l);
            l.linear(&p, "e_proj", d, d);
            l.linear(&p, "h_proj", d, d);
            for norm in ["enorm", "hnorm", "norm"] {
                l.plain(&p, &format!("{norm}.weight"), &[d]);
            }
            head_collapse(c, a, &format!("{p}."), l);
        }
    }
}

/// The stages of a block drafter.
fn drafter(c: &Config, a: &Compressed, markov: [&str; 2], collapse: bool, l: &mut List) {
    let Some(x) = &a.dspark else { return };
    let (stages, d) = (c.draft_stages(), c.hidden_size);
    let moe = Moe { n_routed_experts: x.n_routed_experts, num_experts_per_tok: x.num_experts_per_tok, ..c.moe.clone() };
    for s in 0..stages {
        let p = format!("mtp.{s}");
        block(c, a, &p, &moe, false, l);
        if s == 0 {
            l.linear(&p, "main_proj", d, d * x.target_layer_ids.len());
            l.plain(&p, "main_norm.weight", &[d]);
        }
        if s + 1 == stages {
            l.plain(&p, "norm.weight", &[d]);
            if collapse {
                head_collapse(c, a, &format!("{p}."), l);
            }
            for name in markov {
                l.plain(&p, &format!("markov_head.{name}"), &[c.vocab_size, x.markov_rank]);
            }
            l.plain(&p, "confidence_head.proj.weight", &[1, d + x.markov_rank]);
        }
    }
}

fn v41(c: &Config, f: &V41, l: &mut List) {
    let (a, d) = (&f.attention, c.hidden_size);
    let (x, hd) = (a.indexer, a.head_dim);
    ends(c, l);
    for i in 0..c.num_hidden_layers {
        let p = format!("layers.{i}");
        block(c, a, &p, &c.moe, false, l);
        // Biases for image tokens: the text model runs without them.
        l.exact(&p, "ffn.gate.bias_vl", &[c.moe.n_routed_experts]);
        if let Some(last) = l.0.last_mut() {
            last.optional = true;
        }
        if f.kv_source_layer_ids.contains(&i) {
            let q = format!("{p}.attn.compressor");
            l.plain(&q, "wkv.weight", &[hd, d]);
            l.plain(&q, "norm.weight", &[hd]);
            if a.compress_ratios.get(i).is_some_and(|&r| r > 1) {
                l.plain(&q, "wgate.weight", &[hd, d]);
            }
            l.plain(&p, "attn.indexer.wk.weight", &[x.index_head_dim, hd]);
            l.plain(&p, "attn.indexer.k_norm.weight", &[x.index_head_dim]);
        }
        if f.index_source_layer_ids.contains(&i) {
            l.linear(&format!("{p}.attn.indexer"), "wq_b", x.index_n_heads * x.index_head_dim, a.q_lora_rank);
            l.plain(&p, "attn.indexer.weights_proj.weight", &[x.index_n_heads, d]);
        }
        if let Some(at) = f.engram.layer_ids.iter().position(|&e| e == i) {
            let e = &f.engram;
            let rows = e.num_embeddings.get(at).copied().unwrap_or(0);
            let read = (e.max_ngram_size - 1) * e.n_heads * e.head_dim;
            l.add(format!("{p}.engram.embed.weight"), &[rows, e.head_dim], Storage::Table);
            l.linear(&format!("{p}.engram"), "wkv", (a.hyper.hc_mult + 1) * d, read);
            l.plain(&p, "engram.q_weight", &[a.hyper.hc_mult, d]);
            l.plain(&p, "engram.k_weight", &[a.hyper.hc_mult, d]);
        }
    }
    drafter(c, a, ["embed.weight", "head.weight"], false, l);
}

/// True for tensors that belong to parts this crate does not run.
pub fn unread(c: &Config, name: &str) -> bool {
    match &c.family {
        Family::V3(_) => (c.num_hidden_layers..c.num_hidden_layers + c.num_nextn_predict_layers)
            .any(|i| name.starts_with(&format!("model.layers.{i}."))),
        Family::V4(_) => false,
        Family::V41(_) => ["vision.", "aligner.", "image_"].iter().any(|p| name.starts_with(p)),
    }
}

/// Compares a checkpoint with what its configuration needs; no data is read.
pub fn audit(c: &Config, checkpoint: &Checkpoint) -> Vec<Fault> {
    let mut faults = vec![];
    let mut known = BTreeSet::new();
    let block = c.weight_block();
    for want in expected(c) {
        known.insert(want.name.clone());
        let Some((file, entry)) = checkpoint.entry(&want.name) else {
            if !want.optional {
                let (expected, file) = (describe(&want), checkpoint.dir.clone());
                faults.push(Fault {
                    kind: FaultKind::Missing,
                    tensor: want.name,
                    file,
                    expected,
                    got: "nothing".into(),
                });
            }
            continue;
        };
        let wrong = |tensor: &str, expected: String, entry: &Entry, file: PathBuf| Fault {
            kind: FaultKind::Wrong,
            tensor: tensor.into(),
            file,
            expected,
            got: format!("{} {:?}", entry.dtype_name, entry.shape),
        };
        let Some((shape, scale)) = stored(&want, entry.dtype, block) else {
            faults.push(wrong(&want.name, describe(&want), entry, file.path.clone()));
            continue;
        };
        if entry.shape != shape {
            faults.push(wrong(&want.name, format!("shape {shape:?}"), entry, file.path.clone()));
            continue;
        }
        if let Some(scale) = scale {
            let names = scale_names(&want.name);
            let Some(name) = names.iter().find(|n| checkpoint.entry(n).is_some()) else {
                let expected = format!("scales {scale:?} of F8_E8M0 or F32, since the weight is {}", entry.dtype_name);
                let (tensor, file) = (names[0].clone(), file.path.clone());
                faults.push(Fault { kind: FaultKind::Missing, tensor, file, expected, got: "nothing".into() });
                continue;
            };
            known.insert(name.clone());
            if let Some((file, entry)) = checkpoint.entry(name)
                && (entry.shape != scale || !matches!(entry.dtype, Some(DType::E8m0 | DType::F32)))
            {
                let expected = format!("F8_E8M0 or F32 {scale:?}");
                faults.push(wrong(name, expected, entry, file.path.clone()));
            }
        }
    }
    for name in checkpoint.names().filter(|n| !known.contains(*n) && !unread(c, n)) {
        if let Some((file, entry)) = checkpoint.entry(name) {
            faults.push(Fault {
                kind: FaultKind::Extra,
                tensor: name.into(),
                file: file.path.clone(),
                expected: "no such tensor".into(),
                got: format!("{} {:?}", entry.dtype_name, entry.shape),
            });
        }
    }
    faults
}

/// Shape of a tensor in this dtype, and of its scales if it has some; `None` if the dtype does not do.
fn stored(want: &Expected, dtype: Option<DType>, block: [usize; 2]) -> Option<(Vec<usize>, Option<Vec<usize>>)> {
    let same = || want.shape.clone();
    let pair = || (want.shape.first().copied().unwrap_or(1), want.shape.get(1).copied().unwrap_or(1));
    let dtype = dtype?;
    let plain = matches!(dtype, DType::Bf16 | DType::F16 | DType::F32);
    match want.storage {
        Storage::Exact => (dtype == DType::F32).then(|| (same(), None)),
        Storage::Ids => (dtype == DType::I64).then(|| (same(), None)),
        _ if plain => Some((same(), None)),
        Storage::Linear | Storage::Expert if dtype == DType::E4m3 => {
            let (rows, columns) = pair();
            Some((same(), Some(vec![rows.div_ceil(block[0]), columns.div_ceil(block[1])])))
        }
        Storage::Table if dtype == DType::E4m3 => {
            let (rows, columns) = pair();
            Some((same(), Some(vec![rows, columns.div_ceil(FP4_GROUP)])))
        }
        Storage::Expert if matches!(dtype, DType::I8 | DType::U8) => {
            let (rows, columns) = pair();
            Some((vec![rows, columns / 2], Some(vec![rows, columns.div_ceil(FP4_GROUP)])))
        }
        Storage::Plain | Storage::Linear | Storage::Expert | Storage::Table => None,
    }
}

fn describe(want: &Expected) -> String {
    let formats = match want.storage {
        Storage::Plain => "BF16, F16 or F32",
        Storage::Linear => "BF16, F16, F32, or F8_E4M3 with scales",
        Storage::Expert => "BF16, F16, F32, F8_E4M3 with scales, or I8 pairs of e2m1 with scales",
        Storage::Table => "BF16, F16, F32, or F8_E4M3 with scales",
        Storage::Exact => "F32",
        Storage::Ids => "I64",
    };
    format!("{formats} {:?}", want.shape)
}

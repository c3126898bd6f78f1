//! `config.json` as typed values, every key checked.
//!
//! A key that is unknown, missing, of the wrong type or in contradiction to another is refused with file, key, what was
//! expected, what was found and a next step; all mistakes of a file come at once. Values are plain data; the names are those
//! of the published files. Not here: tensors (`checkpoint`), arithmetic (`forward`). Keys of training and of other software
//! that change nothing in the network are listed in [`METADATA`] and not read.

mod family;
mod read;

pub use read::{ConfigError, Problem};

use read::{Reader, shown};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

/// Keys that change nothing in the network.
const METADATA: [&str; 19] = [
    "architectures",
    "model_type",
    "auto_map",
    "transformers_version",
    "torch_dtype",
    "dtype",
    "use_cache",
    "initializer_range",
    "aux_loss_alpha",
    "seq_aux",
    "pretraining_tp",
    "ep_size",
    "pad_token_id",
    "_name_or_path",
    "return_dict",
    "output_attentions",
    "output_hidden_states",
    "router_aux_loss_coef",
    "output_router_logits",
];

/// A checkpoint's configuration.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// The file it came from.
    pub file: PathBuf,
    /// `vocab_size`.
    pub vocab_size: usize,
    /// `hidden_size`.
    pub hidden_size: usize,
    /// `num_hidden_layers`.
    pub num_hidden_layers: usize,
    /// `num_attention_heads`.
    pub num_attention_heads: usize,
    /// `rms_norm_eps`.
    pub rms_norm_eps: f64,
    /// `max_position_embeddings`.
    pub max_position_embeddings: usize,
    /// `bos_token_id`.
    pub bos_token_ids: Vec<usize>,
    /// `eos_token_id`, one or several.
    pub eos_token_ids: Vec<usize>,
    /// `num_nextn_predict_layers`.
    pub num_nextn_predict_layers: usize,
    /// Mixture of experts.
    pub moe: Moe,
    /// Rotary embedding.
    pub rope: Rope,
    /// `quantization_config`.
    pub quantization: Option<Quantization>,
    /// What only this family has.
    pub family: Family,
}

/// The families.
#[derive(Clone, Debug, PartialEq)]
pub enum Family {
    /// `deepseek_v3`, and `deepseek_v32` with an indexer.
    V3(V3),
    /// `deepseek_v4`.
    V4(V4),
    /// `deepseek_v41`.
    V41(V41),
}

/// The compression ratio whose groups overlap and whose entries are selected, by the rule of V4.
pub const OVERLAPPING: usize = 4;

impl Config {
    /// Rows and columns of a weight that share a scale, where `quantization_config` says nothing: those of V4.
    pub fn weight_block(&self) -> [usize; 2] {
        self.quantization.map_or([128, 128], |q| q.weight_block_size)
    }

    /// Stages of a block drafter: three in every published checkpoint, whatever `num_nextn_predict_layers` says.
    pub fn draft_stages(&self) -> usize {
        self.num_nextn_predict_layers.max(3)
    }

    /// The family's name as rows show it.
    pub fn architecture(&self) -> &'static str {
        match &self.family {
            Family::V3(V3 { indexer: None, .. }) => "v3",
            Family::V3(V3 { indexer: Some(_), .. }) => "v32",
            Family::V4(_) => "v4",
            Family::V41(_) => "v41",
        }
    }
}

/// Router and experts.
#[derive(Clone, Debug, PartialEq)]
pub struct Moe {
    /// `n_routed_experts`.
    pub n_routed_experts: usize,
    /// `n_shared_experts`.
    pub n_shared_experts: usize,
    /// `num_experts_per_tok`.
    pub num_experts_per_tok: usize,
    /// `moe_intermediate_size`.
    pub moe_intermediate_size: usize,
    /// `routed_scaling_factor`.
    pub routed_scaling_factor: f64,
    /// `swiglu_limit`.
    pub swiglu_limit: Option<f64>,
}

/// Rotary embedding.
#[derive(Clone, Debug, PartialEq)]
pub struct Rope {
    /// `qk_rope_head_dim`.
    pub qk_rope_head_dim: usize,
    /// `rope_theta`.
    pub rope_theta: f64,
    /// `rope_scaling`.
    pub rope_scaling: Option<Yarn>,
}

/// `rope_scaling` of kind yarn.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Yarn {
    /// `factor`.
    pub factor: f64,
    /// `original_max_position_embeddings`.
    pub original_max_position_embeddings: f64,
    /// `beta_fast`.
    pub beta_fast: f64,
    /// `beta_slow`.
    pub beta_slow: f64,
    /// `mscale`; 0 where the family has none.
    pub mscale: f64,
    /// `mscale_all_dim`; 0 where the family has none.
    pub mscale_all_dim: f64,
}

/// `quantization_config`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quantization {
    /// `weight_block_size`, rows and columns that share a scale.
    pub weight_block_size: [usize; 2],
}

/// Lightning indexer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Indexer {
    /// `index_n_heads`.
    pub index_n_heads: usize,
    /// `index_head_dim`.
    pub index_head_dim: usize,
    /// `index_topk`.
    pub index_topk: usize,
}

/// Multi-head latent attention with dense first layers.
#[derive(Clone, Debug, PartialEq)]
pub struct V3 {
    /// `intermediate_size` of dense layers.
    pub intermediate_size: usize,
    /// `first_k_dense_replace`.
    pub first_k_dense_replace: usize,
    /// `q_lora_rank`.
    pub q_lora_rank: usize,
    /// `kv_lora_rank`.
    pub kv_lora_rank: usize,
    /// `qk_nope_head_dim`.
    pub qk_nope_head_dim: usize,
    /// `v_head_dim`.
    pub v_head_dim: usize,
    /// `n_group`.
    pub n_group: usize,
    /// `topk_group`.
    pub topk_group: usize,
    /// V3.2's token selection.
    pub indexer: Option<Indexer>,
}

/// Hyper-connections.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Hyper {
    /// `hc_mult`.
    pub hc_mult: usize,
    /// `hc_sinkhorn_iters`.
    pub hc_sinkhorn_iters: usize,
    /// `hc_eps`.
    pub hc_eps: f64,
}

/// What V4 and V4.1 share: windowed and compressed attention on one key head.
#[derive(Clone, Debug, PartialEq)]
pub struct Compressed {
    /// `head_dim`.
    pub head_dim: usize,
    /// `q_lora_rank`.
    pub q_lora_rank: usize,
    /// `o_lora_rank`.
    pub o_lora_rank: usize,
    /// `o_groups`.
    pub o_groups: usize,
    /// `sliding_window`.
    pub sliding_window: usize,
    /// `compress_ratios`: of the layers, then of the prediction layers.
    pub compress_ratios: Vec<usize>,
    /// `compress_rope_theta`.
    pub compress_rope_theta: f64,
    /// Indexer of the layers that select.
    pub indexer: Indexer,
    /// Hyper-connections.
    pub hyper: Hyper,
    /// Block drafter, if the checkpoint holds one.
    pub dspark: Option<Dspark>,
}

/// Block drafter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dspark {
    /// `dspark_block_size`.
    pub block_size: usize,
    /// `dspark_noise_token_id`.
    pub noise_token_id: usize,
    /// `dspark_target_layer_ids`.
    pub target_layer_ids: Vec<usize>,
    /// `dspark_markov_rank`.
    pub markov_rank: usize,
    /// `dspark_n_routed_experts`; the model's own number in V4.
    pub n_routed_experts: usize,
    /// `dspark_num_experts_per_tok`; the model's own number in V4.
    pub num_experts_per_tok: usize,
}

/// V4.
#[derive(Clone, Debug, PartialEq)]
pub struct V4 {
    /// Attention and streams.
    pub attention: Compressed,
    /// `num_hash_layers`.
    pub num_hash_layers: usize,
}

/// V4.1.
#[derive(Clone, Debug, PartialEq)]
pub struct V41 {
    /// Attention and streams.
    pub attention: Compressed,
    /// `kv_source_layer_ids`.
    pub kv_source_layer_ids: Vec<usize>,
    /// `index_source_layer_ids`.
    pub index_source_layer_ids: Vec<usize>,
    /// `candidate_source_layer_id`.
    pub candidate_source_layer_id: usize,
    /// `candidate_topk_blocks`.
    pub candidate_topk_blocks: usize,
    /// `candidate_block_size`.
    pub candidate_block_size: usize,
    /// N-gram tables.
    pub engram: Engram,
    /// `image_token_id`.
    pub image_token_id: usize,
}

/// N-gram tables of V4.1.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Engram {
    /// `engram_layer_ids`.
    pub layer_ids: Vec<usize>,
    /// `engram_num_embeddings`, rows of each of those layers' tables.
    pub num_embeddings: Vec<usize>,
    /// `engram_max_ngram_size`.
    pub max_ngram_size: usize,
    /// `engram_vocab_size`.
    pub vocab_size: usize,
    /// `engram_n_heads`.
    pub n_heads: usize,
    /// `engram_head_dim`.
    pub head_dim: usize,
    /// `engram_pad_token_id`.
    pub pad_token_id: usize,
    /// `engram_compressed_vocab_size`.
    pub compressed_vocab_size: usize,
}

/// Reads `config.json` of a folder.
///
/// # Errors
/// A file that is missing or no JSON object; every mistake in it.
pub fn read(dir: &Path) -> Result<Config, ConfigError> {
    let file = dir.join("config.json");
    let whole = |expected: &str, got: String, next: &str| ConfigError {
        file: file.clone(),
        problems: vec![Problem { key: String::new(), expected: expected.into(), got, next: next.into() }],
    };
    let next = "name the folder of a checkpoint: config.json beside *.safetensors";
    let text = std::fs::read_to_string(&file).map_err(|e| whole("a readable file", e.to_string(), next))?;
    let json: Value =
        serde_json::from_str(&text).map_err(|e| whole("JSON", e.to_string(), "repair the file or fetch it again"))?;
    parse(&file, &json)
}

/// Checks a configuration. Pure, so that tests feed it any value.
///
/// # Errors
/// Every mistake in it.
pub fn parse(file: &Path, json: &Value) -> Result<Config, ConfigError> {
    let fail = |problems| ConfigError { file: file.to_path_buf(), problems };
    let Value::Object(map) = json else {
        let next = "name the folder of a checkpoint: config.json beside *.safetensors".into();
        return Err(fail(vec![Problem { key: String::new(), expected: "an object".into(), got: shown(json), next }]));
    };
    let mut r = Reader::new(map, "");
    let kind = r.word("model_type", &["deepseek_v3", "deepseek_v32", "deepseek_v4", "deepseek_v41"]);
    if !r.problems.is_empty() {
        // Without the family every other key would be unknown.
        return Err(fail(r.problems));
    }
    architecture(&mut r, &kind);
    r.ignore(&METADATA);
    let config = if kind == "deepseek_v41" { family::nested(file, &mut r) } else { family::flat(file, &kind, &mut r) };
    let problems = r.finish();
    match config {
        Some(config) if problems.is_empty() => Ok(config),
        _ => Err(fail(problems)),
    }
}

/// `architectures` must name what `model_type` names.
fn architecture(r: &mut Reader<'_>, kind: &str) {
    let want = match kind {
        "deepseek_v32" => "DeepseekV32ForCausalLM",
        "deepseek_v4" => "DeepseekV4ForCausalLM",
        "deepseek_v41" => "DeepseekV41ForCausalLM",
        _ => "DeepseekV3ForCausalLM",
    };
    if let Some(value) = r.get("architectures")
        && *value != json!([want])
    {
        let next = "one of the two keys is wrong; copy both from the published checkpoint";
        r.wrong("architectures", format!("[\"{want}\"], since `model_type` is {kind}"), shown(value), next);
    }
}

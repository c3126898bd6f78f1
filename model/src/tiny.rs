//! Random tiny checkpoints of every family: small enough to run anywhere, with every kind of layer.
//!
//! Pure: a configuration, tensors from a seed and a tokenizer; whoever asked writes them. Weights are drawn so that activations keep their
//! size from layer to layer. Not here: expected numbers, which come from elsewhere or they would prove nothing.

pub mod tokenizer;

use crate::checkpoint::names::{Storage, expected};
use crate::checkpoint::safetensors;
use crate::config::{self, Config};
use crate::error::Result;
use crate::text::compress;
use kiln_codegen::host_tensor::HostTensor;
use kiln_codegen::ir::DType;
use serde_json::{Value, json};
use std::path::Path;

/// Family and seed of the bundled checkpoint.
pub const BUNDLED: (&str, u64) = ("v4", 1);

/// The files of the bundled checkpoint, as [`files`] makes them: a model to try things with that every program has.
pub const BUNDLED_FILES: [(&str, &[u8]); 3] = [
    ("model.safetensors", include_bytes!("../assets/tiny-v4/model.safetensors")),
    (crate::text::tokenizer::FILE, include_bytes!("../assets/tiny-v4/tokenizer.json")),
    ("config.json", include_bytes!("../assets/tiny-v4/config.json")),
];

/// The families.
pub const ARCHITECTURES: [&str; 4] = ["v3", "v32", "v4", "v41"];

/// A file by its name.
pub type File = (&'static str, Vec<u8>);

/// The files of a tiny checkpoint; `None` for an unknown family.
///
/// # Errors
/// None for the families above.
pub fn files(arch: &str, seed: u64) -> Result<Option<Vec<File>>> {
    let Some(config) = configuration(arch)? else { return Ok(None) };
    // The configuration last: a folder with one is a checkpoint.
    Ok(Some(vec![
        ("model.safetensors", safetensors::write(&tensors(&config, seed)?)),
        (crate::text::tokenizer::FILE, format!("{:#}\n", tokenizer::tokenizer()).into_bytes()),
        ("config.json", format!("{config:#}\n").into_bytes()),
    ]))
}

/// `config.json` of a tiny model; `None` for an unknown family.
///
/// # Errors
/// None: V4.1 asks the tokenizer above for its classes.
pub fn configuration(arch: &str) -> Result<Option<Value>> {
    let mut shared = json!({
        "vocab_size": tokenizer::VOCAB_SIZE, "hidden_size": 64, "moe_intermediate_size": 32, "num_attention_heads": 4,
        "q_lora_rank": 32, "qk_rope_head_dim": 16, "n_routed_experts": 8, "n_shared_experts": 1,
        "num_experts_per_tok": 2, "norm_topk_prob": true, "topk_method": "noaux_tc", "hidden_act": "silu",
        "rms_norm_eps": 1e-6, "max_position_embeddings": 4096, "rope_theta": 10000.0, "bos_token_id": 0,
        "eos_token_id": 1, "tie_word_embeddings": false, "attention_bias": false,
        "rope_scaling": {"type": "yarn", "factor": 16, "original_max_position_embeddings": 64, "beta_fast": 32,
            "beta_slow": 1},
    });
    let latent = json!({
        "num_hidden_layers": 3, "num_key_value_heads": 4, "intermediate_size": 96, "kv_lora_rank": 32,
        "qk_nope_head_dim": 16, "v_head_dim": 16, "n_group": 4, "topk_group": 2, "first_k_dense_replace": 1,
        "routed_scaling_factor": 2.5, "scoring_func": "sigmoid", "num_nextn_predict_layers": 0,
    });
    let streams = json!({
        "num_key_value_heads": 1, "head_dim": 32, "o_lora_rank": 16, "o_groups": 2, "sliding_window": 16,
        "compress_rope_theta": 160000.0, "routed_scaling_factor": 1.5, "scoring_func": "sqrtsoftplus",
        "swiglu_limit": 10.0, "hc_mult": 4, "hc_sinkhorn_iters": 20, "hc_eps": 1e-6,
    });
    let index = json!({"index_n_heads": 4, "index_head_dim": 32, "index_topk": 8});
    let mut add = |more: &Value| {
        if let (Some(all), Some(more)) = (shared.as_object_mut(), more.as_object()) {
            all.extend(more.iter().map(|(k, v)| (k.clone(), v.clone())));
        }
    };
    let name = |kind: &str, class: &str| json!({"model_type": kind, "architectures": [class]});
    match arch {
        "v3" => {
            add(&latent);
            add(&name("deepseek_v3", "DeepseekV3ForCausalLM"));
        }
        "v32" => {
            add(&latent);
            add(&index);
            add(&name("deepseek_v32", "DeepseekV32ForCausalLM"));
        }
        "v4" => {
            add(&streams);
            add(&index);
            add(&name("deepseek_v4", "DeepseekV4ForCausalLM"));
            add(&json!({"num_hidden_layers": 4, "compress_ratios": [0, 4, 16, 4, 0], "num_hash_layers": 1,
                "num_nextn_predict_layers": 1}));
        }
        "v41" => {
            let classes = compress::count(&tokenizer::parsed()?)?;
            add(&streams);
            add(&index);
            add(&json!({"num_hidden_layers": 6, "compress_ratios": [0, 0, 2, 1, 1, 1, 0, 0, 0],
                "num_nextn_predict_layers": 3, "kv_source_layer_ids": [2, 3], "index_source_layer_ids": [2, 3, 5],
                "candidate_source_layer_id": 3, "candidate_topk_blocks": 4, "candidate_block_size": 4,
                "engram_layer_ids": [1], "engram_num_embeddings": [304], "engram_max_ngram_size": 4,
                "engram_vocab_size": 40, "engram_n_heads": 2, "engram_head_dim": 32, "engram_pad_token_id": 2,
                "engram_compressed_vocab_size": classes}));
            add(&json!({"dspark_block_size": 5, "dspark_noise_token_id": 250, "dspark_target_layer_ids": [3, 4, 5],
                "dspark_markov_rank": 16, "dspark_n_routed_experts": 4, "dspark_num_experts_per_tok": 1}));
            let text = shared;
            return Ok(Some(json!({"model_type": "deepseek_v41", "architectures": ["DeepseekV41ForCausalLM"],
                "bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 2, "image_token_id": tokenizer::IMAGE, "text_config": text})));
        }
        _ => return Ok(None),
    }
    Ok(Some(shared))
}

/// Tensors of a configuration from a seed, in the order of `names::expected`.
///
/// # Errors
/// None for the configurations above; a mistake in them would show here.
pub fn tensors(json: &Value, seed: u64) -> Result<Vec<(String, HostTensor)>> {
    let c = config::parse(Path::new("config.json"), json)?;
    let mut noise = Noise(seed);
    Ok(expected(&c).iter().filter(|t| !t.optional).map(|t| (t.name.clone(), draw(&c, t, &mut noise))).collect())
}

fn draw(c: &Config, t: &crate::checkpoint::names::Expected, noise: &mut Noise) -> HostTensor {
    let n: usize = t.shape.iter().product();
    if t.storage == Storage::Ids {
        // Different experts a token.
        let each = t.shape.get(1).copied().unwrap_or(1);
        let ids = (0..n).map(|i| ((i / each * 3 + i % each) % c.moe.n_routed_experts) as f64).collect::<Vec<_>>();
        return HostTensor::from_f64(DType::I64, &t.shape, &ids);
    }
    let norm = t.shape.len() == 1 && t.name.contains("norm") && t.name.ends_with("weight");
    // Rows of a matrix sum as many products as they have columns.
    let size = match t.shape[..] {
        _ if t.name.contains("embed") => 1.0,
        [_, columns] => (1.0 / columns as f64).sqrt() * 1.5,
        _ => 0.2,
    };
    let values: Vec<f64> = (0..n).map(|_| noise.next() * size + f64::from(norm)).collect();
    let dtype = if t.storage == Storage::Exact { DType::F32 } else { DType::Bf16 };
    HostTensor::from_f64(dtype, &t.shape, &values)
}

/// Numbers around zero with a deviation near 1, the same for the same seed.
struct Noise(u64);

impl Noise {
    fn next(&mut self) -> f64 {
        // Four uniform numbers: the sum's deviation is (4/12)^½.
        let mut sum = -2.0;
        for _ in 0..4 {
            self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            sum += (self.0 >> 11) as f64 / (1u64 << 53) as f64;
        }
        sum * 3.0f64.sqrt()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Family, OVERLAPPING};

    /// The repository holds what the generator makes. `BLESS=1` writes it again.
    #[test]
    fn the_bundled_checkpoint_is_the_generated_one() {
        let made = files(BUNDLED.0, BUNDLED.1).expect("a family").expect("a family");
        if std::env::var("BLESS").is_ok_and(|v| v == "1") {
            let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("assets/tiny-v4");
            made.iter().for_each(|(name, bytes)| std::fs::write(dir.join(name), bytes).expect("writes"));
        } else {
            for ((name, made), (bundled, bytes)) in made.iter().zip(BUNDLED_FILES) {
                assert_eq!((*name, made.len()), (bundled, bytes.len()));
                assert!(made == bytes, "{name}: run this test with BLESS=1");
            }
        }
        let all: usize = made.iter().map(|(_, bytes)| bytes.len()).sum();
        assert!(all < 3 << 20, "{all} bytes");
    }

    /// Kinds of layers the bundled model has to have.
    #[test]
    fn the_bundled_checkpoint_has_every_kind_of_layer() {
        let json = configuration(BUNDLED.0).expect("a family").expect("a family");
        let c = config::parse(Path::new("config.json"), &json).expect("right");
        let Family::V4(f) = &c.family else { panic!("V4") };
        let layers = &f.attention.compress_ratios[..c.num_hidden_layers];
        let grouped = |r: &usize| *r > 0 && *r != OVERLAPPING;
        assert!(layers.contains(&0) && layers.contains(&OVERLAPPING) && layers.iter().any(grouped), "{layers:?}");
        assert!((1..c.num_hidden_layers).contains(&f.num_hash_layers), "layers routed by token and by score");
        assert_eq!(c.num_nextn_predict_layers, 1, "a prediction block");
        assert!(c.rope.rope_scaling.is_some() && f.attention.hyper.hc_mult == 4);
    }
}

//! A small tokenizer for tiny models: every byte, the special tokens of the chat formats, and merges learned from a paragraph.
//!
//! Pure and the same every time. Text is split before merging by the patterns of the published tokenizers, so that a tiny model
//! goes the way a real one goes. Source: Sennrich et al., Neural machine translation of rare words with subword units, 2016.

use crate::text::chat::token;
use crate::text::tokenizer::{Tokenizer, byte_letters};
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::path::Path;

/// Ids of tiny models.
pub const VOCAB_SIZE: usize = 512;
/// Padding, as the published vocabularies spell it.
const PAD: &str = "<｜▁pad▁｜>";
/// Id of the place of an image: the last one.
pub const IMAGE: usize = VOCAB_SIZE - 1;

/// What merges are learned from.
const PARAGRAPH: &str = "A kiln is an oven for clay. The potter shapes a bowl from soft clay on the wheel and lets it dry in the \
shade for several days. Then the bowl goes into the kiln, and the fire turns the clay to stone. A tile is a flat piece of \
fired clay. Tiles cover roofs, floors and walls, and each of them is small, but together they keep the rain out of the house. \
A program can be made of tiles as well. A matrix is cut into tiles that fit into the fast memory of a processor, and each tile \
is loaded once and used many times. The order of the sums decides the last bits of the result, so the order is written down \
and every machine obeys it. What the compiler cannot prove it checks, and what it cannot check it says. A small model with \
random weights knows nothing of all this. It answers every question with words that have no meaning, but it answers the same \
question with the same words every time, on every machine, and that is what the tests are looking for. Hello world, hello \
there, thank you, please tell me more about the weather in the north and in the south tomorrow.";

/// Tokens that stand at the end, the place of an image last.
fn special() -> Vec<&'static str> {
    let named = [token::USER, token::ASSISTANT, token::SYSTEM, token::THINK, token::THINK_END, token::DSML];
    named.into_iter().chain([token::REMINDER]).chain(token::GROUNDING).chain([token::IMAGE]).collect()
}

/// `tokenizer.json`.
pub fn tokenizer() -> Value {
    let (first, last) = ([token::BOS, token::EOS, PAD], special());
    let letters = byte_letters();
    let mut names: Vec<String> = first.iter().map(|t| t.to_string()).collect();
    names.extend(letters.iter().map(char::to_string));
    let merges = merges(&words(&letters), VOCAB_SIZE - names.len() - last.len());
    names.extend(merges.iter().map(|[a, b]| format!("{a}{b}")));
    let vocab: Map<String, Value> = names.iter().enumerate().map(|(id, t)| (t.clone(), id.into())).collect();
    let ids = (0..first.len()).chain(names.len()..);
    let added: Vec<Value> = ids
        .zip(first.into_iter().chain(last))
        .map(|(id, content)| {
            json!({"id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": false,
                "normalized": false, "special": true})
        })
        .collect();
    let split = |pattern: &str| json!({"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": false});
    let words = "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+\
        | ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+";
    let bytes = |prefix: bool| json!({"type": "ByteLevel", "add_prefix_space": prefix, "trim_offsets": true, "use_regex": prefix});
    json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": added,
        "normalizer": {"type": "Sequence", "normalizers": []},
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
            split("\\p{N}{1,3}"), split("[一-龥\u{3040}-ゟ゠-ヿ]+"), split(words), bytes(false),
        ]},
        "post_processor": null, "decoder": bytes(true),
        "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "vocab": vocab,
            "merges": merges.iter().map(|[a, b]| format!("{a} {b}")).collect::<Vec<_>>()},
    })
}

/// The tokenizer read back.
///
/// # Errors
/// None: the file above is one.
pub fn parsed() -> crate::error::Result<Tokenizer> {
    Tokenizer::parse(Path::new("tokenizer.json"), tokenizer().to_string().as_bytes(), VOCAB_SIZE)
}

/// Words of the paragraph with the blank before them, a letter a byte.
fn words(letters: &[char; 256]) -> Vec<Vec<String>> {
    let mut words: Vec<String> = vec![];
    for c in PARAGRAPH.chars() {
        match words.last_mut() {
            Some(word)
                if c.is_alphabetic() && word.chars().next_back().is_some_and(|l| l.is_alphabetic() || l == ' ') =>
            {
                word.push(c);
            }
            _ => words.push(c.to_string()),
        }
    }
    words.iter().map(|w| w.bytes().map(|b| letters[usize::from(b)].to_string()).collect()).collect()
}

/// The most frequent neighbours again and again, the first in order among equals.
fn merges(words: &[Vec<String>], count: usize) -> Vec<[String; 2]> {
    let mut words = words.to_vec();
    let mut out = vec![];
    while out.len() < count {
        let mut pairs: BTreeMap<[&str; 2], usize> = BTreeMap::new();
        for pair in words.iter().flat_map(|w| w.windows(2)) {
            *pairs.entry([&pair[0], &pair[1]]).or_default() += 1;
        }
        // The last of the largest when walked backwards is the first in order.
        let Some((&[a, b], _)) = pairs.iter().rev().max_by_key(|(_, n)| **n) else { break };
        let best = [a.to_string(), b.to_string()];
        for word in &mut words {
            let mut i = 0;
            while i + 1 < word.len() {
                if word[i] == best[0] && word[i + 1] == best[1] {
                    let next = word.remove(i + 1);
                    word[i].push_str(&next);
                }
                i += 1;
            }
        }
        out.push(best);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_fill_the_vocabulary() {
        let t = parsed().expect("a tokenizer");
        assert!((0..VOCAB_SIZE).all(|id| !t.spelling(id).is_empty()));
        assert_eq!(t.special(token::BOS).expect("there"), 0);
        assert_eq!(t.special(token::EOS).expect("there"), 1);
        assert_eq!(t.special(token::IMAGE).expect("there"), IMAGE);
        assert!((0..VOCAB_SIZE).filter(|&id| t.token(id).expect("there").special).count() == 19);
    }
}

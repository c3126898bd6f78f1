//! `tokenizer.json`: text to token ids and back, byte-level BPE as the published models have it.
//!
//! The `tokenizers` crate splits and merges. Special tokens are looked up here and plain text is encoded without them, so
//! that nobody can type one. Every token stands for bytes; ids become text through those bytes (`stream`), never through
//! strings of single tokens, which may be parts of a character. Not here: templates (`chat`).

use super::prompt::Prompt;
use super::refuse;
use super::stream::TextStream;
use crate::error::Result;
use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use tokenizers::{AddedVocabulary, DecoderWrapper, NormalizerWrapper};

/// A token.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Token {
    /// The bytes it stands for; none for an id without token.
    pub bytes: Vec<u8>,
    /// One of the added ones: a special token.
    pub special: bool,
}

/// A tokenizer.
pub struct Tokenizer {
    /// The file it came from.
    pub file: PathBuf,
    plain: tokenizers::Tokenizer,
    special: BTreeMap<String, u32>,
    tokens: Vec<Token>,
    spellings: Vec<String>,
}

impl fmt::Debug for Tokenizer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tokenizer").field("file", &self.file).field("tokens", &self.tokens.len()).finish()
    }
}

/// Name of the file in a checkpoint's folder.
pub const FILE: &str = "tokenizer.json";

/// The letter that byte-level vocabularies write for each byte: printable ones as themselves, the others from U+0100 on.
pub fn byte_letters() -> [char; 256] {
    let printable = |b: u8| matches!(b, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff);
    let mut next = 0x100;
    std::array::from_fn(|b| {
        let code = if printable(b as u8) {
            b as u32
        } else {
            next += 1;
            next - 1
        };
        char::from_u32(code).unwrap_or(char::REPLACEMENT_CHARACTER)
    })
}

impl Tokenizer {
    /// The tokenizer of a checkpoint's folder, if it has one.
    ///
    /// # Errors
    /// A file that is there and cannot be used.
    pub fn of_folder(dir: &Path, vocab_size: usize) -> Result<Option<Tokenizer>> {
        let file = dir.join(FILE);
        if !file.exists() {
            return Ok(None);
        }
        Tokenizer::open(&file, vocab_size).map(Some)
    }

    /// Reads a file for a model with this many token ids.
    ///
    /// # Errors
    /// A file that cannot be read, is no tokenizer, is not byte-level, or has ids the model lacks.
    pub fn open(file: &Path, vocab_size: usize) -> Result<Tokenizer> {
        match std::fs::read(file) {
            Ok(bytes) => Tokenizer::parse(file, &bytes, vocab_size),
            Err(e) => refuse(file, "a readable file", e.to_string(), "put the checkpoint's tokenizer.json there"),
        }
    }

    /// As [`Tokenizer::open`], from the file's bytes.
    ///
    /// # Errors
    /// As there.
    pub fn parse(file: &Path, bytes: &[u8], vocab_size: usize) -> Result<Tokenizer> {
        let next = "fetch the checkpoint's tokenizer.json again";
        let whole = match tokenizers::Tokenizer::from_bytes(bytes) {
            Ok(t) => t,
            Err(e) => return refuse(file, "a tokenizer", e.to_string(), next),
        };
        if !matches!(whole.get_decoder(), Some(DecoderWrapper::ByteLevel(_))) {
            return refuse(file, "a `decoder` of type ByteLevel", "another, or none", "only byte-level BPE is read");
        }
        // The published files have a list of normalizers without entries.
        let changes = |n: &NormalizerWrapper| !matches!(n, NormalizerWrapper::Sequence(s) if s.as_ref().is_empty());
        if whole.get_normalizer().is_some_and(changes) {
            return refuse(file, "no `normalizer`", "one", "only tokenizers that keep every byte are read");
        }
        let vocabulary = whole.get_vocab(true);
        if let Some((token, id)) = vocabulary.iter().find(|(_, id)| **id as usize >= vocab_size) {
            let got = format!("{id} for `{token}`");
            return refuse(file, format!("ids below `vocab_size` {vocab_size}"), got, "use the checkpoint's own file");
        }
        let letters = byte_letters();
        // Bytes that no UTF-8 text has need no token.
        let never = |b: usize| matches!(b, 0xc0 | 0xc1 | 0xf5..);
        let lost = (0..256).find(|&b| !never(b) && !vocabulary.contains_key(&letters[b].to_string()));
        if let Some(b) = lost {
            return refuse(file, "a token for every byte", format!("none for byte {b:#04x}"), next);
        }
        let special: BTreeMap<String, u32> =
            whole.get_added_vocabulary().get_vocab().iter().map(|(token, id)| (token.clone(), *id)).collect();
        let mut tokens = vec![Token::default(); vocab_size];
        let mut spellings = vec![String::new(); vocab_size];
        let byte_of: BTreeMap<char, u8> = (0..=255).map(|b: u8| (letters[usize::from(b)], b)).collect();
        for (text, id) in vocabulary {
            let special = special.get(&text) == Some(&id);
            let bytes = text.chars().map(|c| byte_of.get(&c).copied()).collect::<Option<Vec<u8>>>();
            let bytes = bytes.filter(|_| !special).unwrap_or_else(|| text.as_bytes().to_vec());
            tokens[id as usize] = Token { bytes, special };
            spellings[id as usize] = text;
        }
        let mut plain = whole;
        plain.with_added_vocabulary(AddedVocabulary::new());
        Ok(Tokenizer { file: file.to_path_buf(), plain, special, tokens, spellings })
    }

    /// Ids of a text without special tokens.
    ///
    /// # Errors
    /// The crate's.
    pub fn encode(&self, text: &str) -> Result<Vec<usize>> {
        match self.plain.encode_fast(text, false) {
            Ok(e) => Ok(e.get_ids().iter().map(|id| *id as usize).collect()),
            Err(e) => refuse(&self.file, "a text that can be split", e.to_string(), "shorten the text"),
        }
    }

    /// Ids of a prompt: special parts as one id each, the rest as text.
    ///
    /// # Errors
    /// A special token the tokenizer lacks; as [`Tokenizer::encode`].
    pub fn encode_prompt(&self, prompt: &Prompt) -> Result<Vec<usize>> {
        let mut ids = vec![];
        for (text, special) in prompt.parts() {
            if special {
                ids.push(self.special(text)?);
            } else {
                ids.extend(self.encode(text)?);
            }
        }
        Ok(ids)
    }

    /// Id of a special token.
    ///
    /// # Errors
    /// The tokenizer has none.
    pub fn special(&self, token: &str) -> Result<usize> {
        let next = "use the tokenizer.json of a checkpoint whose prompts have this token";
        let lost = || refuse(&self.file, format!("the special token `{token}`"), "none of that name", next);
        self.special.get(token).map_or_else(lost, |id| Ok(*id as usize))
    }

    /// What an id stands for.
    pub fn token(&self, id: usize) -> Option<&Token> {
        self.tokens.get(id)
    }

    /// How the vocabulary spells an id.
    pub fn spelling(&self, id: usize) -> &str {
        self.spellings.get(id).map_or("", String::as_str)
    }

    /// Number of ids, those without token among them.
    pub fn vocab_size(&self) -> usize {
        self.tokens.len()
    }

    /// Text of some ids, special tokens as they are spelled.
    pub fn decode(&self, ids: &[usize]) -> String {
        let mut stream = TextStream::default();
        let mut text: String =
            ids.iter().map(|id| stream.push(self.token(*id).map_or(&[][..], |t| &t.bytes))).collect();
        text.push_str(&stream.finish());
        text
    }
}

//! A prompt: text, and which parts of it are special tokens rather than characters that spell one.
//!
//! A user who types `<｜User｜>` gets characters; a template that says it gets the token. So the two are kept apart from the
//! first string on until they are ids.

use std::ops::Range;

/// Text with special parts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Prompt {
    /// All of it.
    pub text: String,
    /// Bytes of `text` that are one special token each, in order, apart from each other.
    pub special: Vec<Range<usize>>,
}

impl Prompt {
    /// Characters and nothing else.
    pub fn of(text: &str) -> Prompt {
        Prompt { text: text.to_string(), special: vec![] }
    }
    /// Adds characters.
    pub fn plain(&mut self, text: &str) -> &mut Self {
        self.text.push_str(text);
        self
    }
    /// Adds a special token.
    pub fn special(&mut self, token: &str) -> &mut Self {
        let start = self.text.len();
        self.text.push_str(token);
        self.special.push(start..self.text.len());
        self
    }
    /// Adds a prompt.
    pub fn append(&mut self, more: &Prompt) -> &mut Self {
        let at = self.text.len();
        self.text.push_str(&more.text);
        self.special.extend(more.special.iter().map(|r| r.start + at..r.end + at));
        self
    }
    /// Whether there is nothing in it.
    pub fn is_empty(&self) -> bool {
        self.text.is_empty()
    }
    /// Its parts in order: text, and whether it is a special token. No part is empty.
    pub fn parts(&self) -> impl Iterator<Item = (&str, bool)> {
        let ends = self.special.iter().map(|r| r.end);
        let starts = std::iter::once(0).chain(ends.clone());
        let plain = starts.zip(self.special.iter().map(|r| r.start).chain([self.text.len()]));
        let special = self.special.iter().map(|r| Some(r.clone())).chain([None]);
        plain.zip(special).flat_map(|((a, b), special)| {
            let plain = (a < b).then(|| (&self.text[a..b], false));
            plain.into_iter().chain(special.map(|r| (&self.text[r], true)))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_the_prompt_cut_at_special_tokens() {
        let mut tail = Prompt::of("b");
        tail.special("<y>");
        let mut p = Prompt::default();
        p.special("<x>").special("<y>").plain("a").append(&tail);
        assert_eq!(p.text, "<x><y>ab<y>");
        let parts: Vec<_> = p.parts().collect();
        assert_eq!(parts, [("<x>", true), ("<y>", true), ("ab", false), ("<y>", true)]);
        assert_eq!(Prompt::of("<x>").parts().collect::<Vec<_>>(), [("<x>", false)]);
        assert_eq!(Prompt::default().parts().count(), 0);
    }
}

//! Bytes of tokens to text while they arrive, never half a character.
//!
//! A token may end inside a character: its bytes wait until the character is whole. Bytes that can be no character become
//! U+FFFD, one for each longest piece that could have begun one, as the standard library has it, so that the pieces together are what
//! all bytes at once give.

/// Bytes that wait.
#[derive(Clone, Debug, Default)]
pub struct TextStream {
    held: Vec<u8>,
}

impl TextStream {
    /// The text that is whole with these bytes.
    pub fn push(&mut self, bytes: &[u8]) -> String {
        self.held.extend_from_slice(bytes);
        let (mut text, mut done) = (String::new(), 0);
        for chunk in self.held.utf8_chunks() {
            text.push_str(chunk.valid());
            done += chunk.valid().len();
            if chunk.invalid().is_empty() {
                continue;
            }
            let at_end = done + chunk.invalid().len() == self.held.len();
            // `None`: the bytes end before the character does.
            if at_end && std::str::from_utf8(chunk.invalid()).is_err_and(|e| e.error_len().is_none()) {
                break;
            }
            text.push(char::REPLACEMENT_CHARACTER);
            done += chunk.invalid().len();
        }
        self.held.drain(..done);
        text
    }

    /// What was waiting for more.
    pub fn finish(self) -> String {
        String::from_utf8_lossy(&self.held).into_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every way to cut `bytes` into pieces of one to three gives the text of all of them.
    fn same_in_pieces(bytes: &[u8]) {
        let whole = String::from_utf8_lossy(bytes);
        for size in 1..=3 {
            let mut s = TextStream::default();
            let mut text: String = bytes.chunks(size).map(|c| s.push(c)).collect();
            text.push_str(&s.finish());
            assert_eq!(text, whole, "{bytes:?} by {size}");
        }
    }

    #[test]
    fn pieces_are_the_whole() {
        same_in_pieces("añ字👋z".as_bytes());
        same_in_pieces(&[0x61, 0xff, 0xc3, 0x28, 0xf0, 0x9f, 0x91]);
        same_in_pieces(&[0xe2, 0x82, 0xe2, 0x82, 0xac, 0x80]);
        let mut x = 7u32;
        for _ in 0..2000 {
            let bytes: Vec<u8> = (0..9)
                .map(|_| {
                    x = x.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                    // Leading and following bytes of characters, mostly.
                    [0x61, 0x80, 0x9f, 0xbf, 0xc3, 0xe2, 0xed, 0xf0, 0xf4][(x >> 24) as usize % 9]
                })
                .collect();
            same_in_pieces(&bytes);
        }
    }

    #[test]
    fn half_a_character_waits() {
        let mut s = TextStream::default();
        assert_eq!(s.push(b"a\xf0\x9f"), "a");
        assert_eq!(s.push(b"\x91"), "");
        assert_eq!(s.push(b"\x8b!"), "👋!");
        assert_eq!(s.push(b"\xf0"), "");
        assert_eq!(s.finish(), "\u{fffd}");
    }
}

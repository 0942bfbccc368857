//! Encoding of bytes in JSON: as text if they are text, else in base64.
//!
//! UTF-8 with control characters may be binary data, such as a file of null bytes. JSON takes six bytes for each of those,
//! so content with control characters is written in base64 if that is shorter.

use std::collections::VecDeque;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use super::escape::{self, escape_into};

/// The size of a chunk. A multiple of three, so that base64 can be written chunk by chunk.
const CHUNK: usize = 48 << 10;

/// Content that is encoded at once.
#[derive(Debug)]
pub enum Content<'a> {
    Text(&'a str),
    Bytes(&'a [u8]),
}

impl<'a> Content<'a> {
    pub fn of(bytes: &'a [u8]) -> Self {
        match std::str::from_utf8(bytes) {
            Ok(text) => Self::Text(text),
            Err(_) => Self::Bytes(bytes),
        }
    }

    /// Returns content that is always written in base64: binary data that may be valid UTF-8, such as an archive of texts.
    pub fn bytes(bytes: &'a [u8]) -> Self {
        Self::Bytes(bytes)
    }

    /// Appends a field with its name.
    pub fn put_field(&self, out: &mut Vec<u8>) {
        match self {
            Self::Text(text) => put_text(out, text),
            Self::Bytes(bytes) => put_bytes(out, bytes),
        }
    }
}

/// The content of an answer, whose memory is released chunk by chunk while it is written.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct StoredContent {
    /// All but the last are [`CHUNK`] bytes long.
    chunks: VecDeque<Vec<u8>>,
}

/// The form in which content is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    Text,
    Base64,
}

impl StoredContent {
    pub fn extend_from_slice(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let last = match self.chunks.back_mut() {
                Some(last) if last.len() < CHUNK => last,
                _ => {
                    // Only the first chunk is likely to stay small.
                    let capacity = if self.chunks.is_empty() { 0 } else { CHUNK };
                    self.chunks.push_back(Vec::with_capacity(capacity));
                    continue;
                }
            };
            let (now, later) = bytes.split_at(bytes.len().min(CHUNK - last.len()));
            if last.capacity() < last.len() + now.len() && last.len() + now.len() > CHUNK / 2 {
                last.reserve_exact(CHUNK - last.len());
            }
            last.extend_from_slice(now);
            bytes = later;
        }
    }

    pub fn len(&self) -> usize {
        self.chunks.iter().map(Vec::len).sum()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Removes an incomplete character at the end. Content that is not UTF-8 is unchanged.
    pub fn cut_to_whole_characters(&mut self) {
        if let Some(last) = self.chunks.back()
            && let Encoding::CutOff(bytes) = self.encoding()
        {
            // The character may begin in the previous chunk.
            let (here, before) = (bytes.min(last.len()), bytes.saturating_sub(last.len()));
            for (back, cut) in [(0, here), (1, before)] {
                if let Some(chunk) = self.chunks.iter_mut().nth_back(back) {
                    chunk.truncate(chunk.len() - cut);
                }
            }
        }
    }

    pub fn form(&self) -> Form {
        match self.encoding() {
            Encoding::Text if is_written_as_text(self.chunks.iter().map(Vec::as_slice)) => Form::Text,
            _ => Form::Base64,
        }
    }

    /// Returns the last line that is not empty, truncated if it is long.
    pub fn last_line(&self) -> Option<String> {
        let tail: Vec<u8> = self.chunks.iter().skip(self.chunks.len().saturating_sub(2)).flatten().copied().collect();
        let text = String::from_utf8_lossy(&tail);
        let line = text.lines().rfind(|line| !line.trim().is_empty())?;
        Some(line.trim().chars().take(200).collect())
    }

    /// Appends the next chunk, encoded, without quotation marks. Returns false once no chunk is left.
    pub fn put_chunk(&mut self, form: Form, out: &mut Vec<u8>) -> bool {
        let Some(chunk) = self.chunks.pop_front() else { return false };
        match form {
            Form::Text => {
                escape_into(out, &chunk);
            }
            Form::Base64 => put_base64(out, &chunk),
        }
        true
    }

    fn encoding(&self) -> Encoding {
        // The beginning of a character whose rest is in the next chunk.
        let mut partial: Vec<u8> = Vec::with_capacity(4);
        for chunk in &self.chunks {
            let mut rest = chunk.as_slice();
            while let (false, [byte, after @ ..]) = (partial.is_empty(), rest) {
                partial.push(*byte);
                rest = after;
                match std::str::from_utf8(&partial) {
                    Ok(_) => partial.clear(),
                    Err(error) if error.error_len().is_none() => {}
                    Err(_) => return Encoding::Binary,
                }
            }
            match std::str::from_utf8(rest) {
                Ok(_) => {}
                Err(error) if error.error_len().is_none() => partial.extend_from_slice(&rest[error.valid_up_to()..]),
                Err(_) => return Encoding::Binary,
            }
        }
        if partial.is_empty() { Encoding::Text } else { Encoding::CutOff(partial.len()) }
    }
}

impl From<Vec<u8>> for StoredContent {
    fn from(bytes: Vec<u8>) -> Self {
        let mut stored = StoredContent::default();
        stored.extend_from_slice(&bytes);
        stored
    }
}

enum Encoding {
    Text,
    /// Text, except for this number of bytes at the end that begin a character.
    CutOff(usize),
    Binary,
}

/// Returns whether UTF-8 is written as text: base64 must be longer if it has control characters.
fn is_written_as_text<'a>(chunks: impl IntoIterator<Item = &'a [u8]>) -> bool {
    let (mut length, mut written, mut has_controls) = (0, 0, false);
    for chunk in chunks {
        let cost = escape::cost(chunk);
        length += chunk.len();
        written += chunk.len() + cost.extra;
        has_controls |= cost.has_controls;
    }
    !(has_controls && is_shorter_in_base64(length, written))
}

fn is_shorter_in_base64(length: usize, written: usize) -> bool {
    written > length.div_ceil(3) * 4
}

/// Control characters are rare, so the text is written in one pass, and again in base64 if that is shorter.
fn put_text(out: &mut Vec<u8>, text: &str) {
    let start = out.len();
    out.extend_from_slice(br#""text":""#);
    let first = out.len();
    let has_controls = escape_into(out, text.as_bytes());
    if has_controls && is_shorter_in_base64(text.len(), out.len() - first) {
        out.truncate(start);
        return put_bytes(out, text.as_bytes());
    }
    out.push(b'"');
}

fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    out.extend_from_slice(br#""base64":""#);
    put_base64(out, bytes);
    out.push(b'"');
}

fn put_base64(out: &mut Vec<u8>, bytes: &[u8]) {
    let start = out.len();
    out.resize(start + bytes.len().div_ceil(3) * 4, 0);
    STANDARD.encode_slice(bytes, &mut out[start..]).expect("room for four characters for every three bytes");
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn json(bytes: &[u8]) -> String {
        let mut out = Vec::new();
        Content::of(bytes).put_field(&mut out);
        String::from_utf8(out).expect("UTF-8")
    }

    fn written(mut stored: StoredContent) -> (Form, String) {
        let (form, mut out) = (stored.form(), Vec::new());
        while stored.put_chunk(form, &mut out) {}
        (form, String::from_utf8(out).expect("UTF-8"))
    }

    #[test]
    fn bytes_are_text_where_they_can_be() {
        assert_eq!(json("é\n".as_bytes()), r#""text":"é\n""#);
        assert_eq!(json(&[0xff]), r#""base64":"/w==""#);
        assert_eq!(json(&[0xff, 0, 1, 2]), r#""base64":"/wABAg==""#);
    }

    #[test]
    fn control_characters_are_written_in_the_shorter_way() {
        assert_eq!(json(&[0; 3]), r#""base64":"AAAA""#);
        assert_eq!(written(StoredContent::from(vec![0; 3])), (Form::Base64, "AAAA".to_owned()));
        let coloured = "\u{1b}[31mred and a good deal more of it";
        assert_eq!(json(coloured.as_bytes()), r#""text":"\u001b[31mred and a good deal more of it""#);
    }

    #[test]
    fn ordinary_text_stays_text_however_many_lines_and_quotation_marks_it_has() {
        for text in ["1\n2\n3\n4\n5\n6\n7\n8\n9\n", r#"{"a":"b","c":"d","e":"f"}"#, "\t\r\n\\"] {
            assert!(json(text.as_bytes()).starts_with(r#""text""#), "{text:?}");
            assert_eq!(StoredContent::from(text.as_bytes().to_vec()).form(), Form::Text);
        }
    }

    #[test]
    fn a_character_on_the_border_of_two_chunks_is_text() {
        for before in CHUNK - 4..=CHUNK {
            let text = format!("{}€", "x".repeat(before));
            assert_eq!(StoredContent::from(text.clone().into_bytes()).form(), Form::Text, "{before}");
            let mut cut = StoredContent::from(text.as_bytes()[..text.len() - 1].to_vec());
            assert_eq!(cut.form(), Form::Base64);
            cut.cut_to_whole_characters();
            assert_eq!((cut.len(), cut.form()), (before, Form::Text));
        }
        let mut binary = StoredContent::from(vec![0xff, 0xc3]);
        binary.cut_to_whole_characters();
        assert_eq!(binary.len(), 2, "this is no text");
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]
        #[test]
        fn chunks_are_written_as_the_whole_is(
            bytes in prop_oneof![
                proptest::collection::vec(any::<u8>(), 0..64),
                "(\\PC|[\\x00-\\x24\\\\\"]){0,64}".prop_map(String::into_bytes),
            ],
            times in 1usize..3000,
            step in 1usize..100_000,
        ) {
            let whole = bytes.repeat(times);
            let mut stored = StoredContent::default();
            for part in whole.chunks(step) {
                stored.extend_from_slice(part);
            }
            prop_assert_eq!(stored.len(), whole.len());
            let (form, text) = written(stored);
            let expected = match form {
                Form::Text => format!("\"text\":{}", serde_json::to_string(&String::from_utf8(whole.clone())?)?),
                Form::Base64 => format!("\"base64\":\"{}\"", STANDARD.encode(&whole)),
            };
            prop_assert!(json(&whole) == expected);
            let quoted = [":\"", &text, "\""].concat();
            prop_assert!(expected.ends_with(&quoted));
        }
    }
}

//! Finds the id of a line that is no valid request, at the top level of the object, as far as the line is JSON.
//!
//! Members are skipped, not parsed: a string up to its end, an object or array up to its closing bracket. The scan stops
//! at the first invalid byte, reads each byte once, and stores only the id.

use serde_json::value::RawValue;

use super::{Id, identify};

/// Returns the id of the line, or null if it has none or two: the caller could mean either.
pub(super) fn id_in(line: &[u8]) -> Id {
    let mut scan = Scan { rest: line };
    let mut found = None;
    if scan.members(&mut found).is_some_and(|members| members == Members::TwoIds) {
        return Id::NULL;
    }
    let raw =
        found.and_then(|value| std::str::from_utf8(value).ok()).map(|text| RawValue::from_string(text.to_owned()));
    match raw {
        Some(Ok(raw)) => identify(&raw).unwrap_or(Id::NULL),
        _ => Id::NULL,
    }
}

#[derive(PartialEq, Eq)]
enum Members {
    All,
    TwoIds,
}

struct Scan<'a> {
    rest: &'a [u8],
}

impl<'a> Scan<'a> {
    /// Returns `None` if the line ends early or is invalid JSON.
    fn members(&mut self, id: &mut Option<&'a [u8]>) -> Option<Members> {
        self.expect(b'{')?;
        loop {
            let name = self.string()?;
            self.expect(b':')?;
            let value = self.value()?;
            let next = self.next().filter(|byte| matches!(byte, b',' | b'}'))?;
            // Stored only after a separator: a number at the end of a truncated line may be incomplete.
            if name == br#""id""# && id.replace(value).is_some() {
                return Some(Members::TwoIds);
            }
            if next == b'}' {
                return Some(Members::All);
            }
        }
    }

    fn value(&mut self) -> Option<&'a [u8]> {
        self.skip_space();
        let start = self.rest;
        match start.first()? {
            b'"' => return self.string(),
            b'{' | b'[' => self.nested()?,
            _ => {
                let end = start.iter().position(|byte| matches!(byte, b',' | b'}' | b']' | b' ' | b'\t' | b'\r'));
                self.rest = &start[end.unwrap_or(start.len())..];
            }
        }
        Some(&start[..start.len() - self.rest.len()])
    }

    fn nested(&mut self) -> Option<()> {
        let mut depth = 0usize;
        loop {
            match self.rest.first()? {
                b'"' => {
                    self.string()?;
                    continue;
                }
                b'{' | b'[' => depth += 1,
                b'}' | b']' => depth -= 1,
                _ => {}
            }
            self.rest = &self.rest[1..];
            if depth == 0 {
                return Some(());
            }
        }
    }

    /// Returns a string with its quotation marks.
    fn string(&mut self) -> Option<&'a [u8]> {
        self.skip_space();
        let start = self.rest;
        if *start.first()? != b'"' {
            return None;
        }
        let mut at = 1;
        loop {
            at += memchr::memchr2(b'"', b'\\', start.get(at..)?)?;
            if start[at] == b'"' {
                self.rest = &start[at + 1..];
                return Some(&start[..=at]);
            }
            at += 2;
        }
    }

    fn expect(&mut self, byte: u8) -> Option<()> {
        (self.next()? == byte).then_some(())
    }

    fn next(&mut self) -> Option<u8> {
        self.skip_space();
        let (first, rest) = self.rest.split_first()?;
        self.rest = rest;
        Some(*first)
    }

    fn skip_space(&mut self) {
        let space = self.rest.iter().take_while(|byte| matches!(byte, b' ' | b'\t' | b'\r' | b'\n')).count();
        self.rest = &self.rest[space..];
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn found(line: &str) -> String {
        id_in(line.as_bytes()).as_json().get().to_owned()
    }

    #[test]
    fn an_id_is_found_wherever_it_stands_before_the_end() {
        for line in [
            r#"{"id":"x","method":"sandbox.write_file","params":{"text":"aaaa"#,
            r#" { "jsonrpc" : "2.0" , "id" : "x" , "par"#,
            r#"{"params":{"id":1,"a":["id",{"id":2}]},"id":"x","#,
            r#"{"params":"}],\"id\":1,","id":"x"}"#,
            r#"{"id":"x","params":[[[["#,
        ] {
            assert_eq!(found(line), r#""x""#, "{line}");
        }
        assert_eq!(found(r#"{"id":12,"#), "12");
    }

    #[test]
    fn an_id_that_cannot_be_read_for_certain_is_null() {
        for line in [
            "",
            "id",
            r#"["id",1]"#,
            r#"{"id":12"#,
            r#"{"id":"x"#,
            r#"{"id":{},"#,
            r#"{"id":1 2,"#,
            r#"{"id":1,"id":2,"#,
            r#"{"params":{"id":1"#,
            r#"{"a":"b" "id":1,"#,
            r#"{"id":tru,"#,
        ] {
            assert_eq!(found(line), "null", "{line}");
        }
        let long = format!(r#"{{"id":"{}","#, "x".repeat(Id::MAX_BYTES));
        assert_eq!(found(&long), "null");
    }

    proptest! {
        #[test]
        fn no_line_makes_the_scan_panic(line in "[\\[\\]{}\",:\\\\id1 x]{0,40}") {
            id_in(line.as_bytes());
        }
    }
}

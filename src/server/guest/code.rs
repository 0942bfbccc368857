//! Code execution: the profile of the sandbox defines the interpreter command of each language.

use sandboxd_actors::domain::ids::ChatId;
use sandboxd_actors::domain::sandbox::Holder;
use sandboxd_protocol::error::Error;

use super::exec::WorkLease;
use super::{GuestCall, WriteTurn};
use crate::config::Language;
use crate::languages::Languages;
use crate::protocol::answer::Answer;
use crate::protocol::guest::{Code, Exec, Input, MAX_ARGUMENTS};

impl GuestCall<'_> {
    pub(super) async fn run_code(&self, chat: ChatId, code: Code, turn: Option<WriteTurn>) -> Result<Answer, Error> {
        let id = self.attachments.new_command();
        let lease = WorkLease::acquire(self.sandboxes, chat, Holder::Command { id }, self.max_lease).await?;
        let outcome = match command(self.languages, &lease, code) {
            Ok(exec) => self.run(chat, id, exec, &lease, turn).await,
            Err(error) => Err(error),
        };
        lease.release().await;
        outcome
    }
}

fn command(languages: &Languages, lease: &WorkLease<'_>, code: Code) -> Result<Exec, Error> {
    let known = languages.of(&lease.sandbox.profile);
    match known.get(&code.language) {
        Some(language) => interpreter_command(language, code),
        None => {
            let known: Vec<_> = known.keys().map(String::as_str).collect();
            let message = format!("there is no language {:?}; there are {}", code.language, known.join(", "));
            Err(Error::invalid_params("language", message))
        }
    }
}

/// Returns the interpreter command for the code.
fn interpreter_command(
    language: &Language,
    Code { language: name, source, mut exec, limited }: Code,
) -> Result<Exec, Error> {
    let source = match language.preamble.as_str() {
        "" => source,
        preamble => format!("{}\n{source}", preamble.trim_end_matches('\n')),
    };
    exec.arguments = language.command.clone();
    if !language.stdin {
        exec.arguments.push(source);
    } else if exec.input != Input::None {
        return Err(Error::invalid_params(
            "stdin",
            format!("must be absent: the interpreter of {name} reads the code from it"),
        ));
    } else {
        exec.input = Input::Whole(source.into_bytes());
    }
    let length = exec.arguments.iter().map(String::len).sum::<usize>()
        + exec.environment.iter().map(|(name, value)| name.len() + value.len()).sum::<usize>();
    if length > MAX_ARGUMENTS {
        let message = format!("with env it must be at most {MAX_ARGUMENTS} bytes long in {name}, got {length}");
        return Err(Error::invalid_params("code", message));
    }
    exec.timeout = exec.timeout.or(language.timeout);
    if let Some(most) = language.max_output
        && !limited
        && !exec.output.stream
    {
        exec.output.limit = usize::try_from(most.bytes()).unwrap_or(usize::MAX);
    }
    Ok(exec)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Size;
    use crate::protocol::guest::Output;
    use std::time::Duration;

    fn language() -> Language {
        let command = ["node", "-e"].map(String::from).to_vec();
        Language { command, preamble: String::new(), stdin: false, timeout: None, max_output: None }
    }

    fn code(source: &str) -> Code {
        let output = Output { stream: false, limit: 7, detach_on_disconnect: false };
        let (user, directory, environment, input) = (None, None, Default::default(), Input::None);
        let (arguments, timeout, terminal, detached, sync) = (vec![], None, None, false, false);
        let exec = Exec { arguments, user, directory, environment, input, timeout, output, terminal, detached, sync };
        Code { language: "js".into(), source: source.into(), exec, limited: false }
    }

    #[test]
    fn code_is_the_last_argument_behind_the_preamble() {
        assert_eq!(interpreter_command(&language(), code("1")).unwrap().arguments, ["node", "-e", "1"]);
        let strict = Language { preamble: "'use strict'\n".into(), ..language() };
        assert_eq!(interpreter_command(&strict, code("1")).unwrap().arguments[2], "'use strict'\n1");
    }

    #[test]
    fn code_on_standard_input_may_be_long_and_excludes_other_input() {
        let piped = Language { stdin: true, ..language() };
        let long = "x".repeat(MAX_ARGUMENTS);
        let exec = interpreter_command(&piped, code(&long)).unwrap();
        assert_eq!((exec.arguments.len(), exec.input), (2, Input::Whole(long.clone().into_bytes())));
        assert_eq!(interpreter_command(&language(), code(&long)).unwrap_err().data.details["field"], "code");
        let mut with_input = code("1");
        with_input.exec.input = Input::Whole(vec![]);
        assert_eq!(interpreter_command(&piped, with_input).unwrap_err().data.details["field"], "stdin");
    }

    #[test]
    fn limits_of_the_language_apply_to_code_without_its_own() {
        let (second, minute) = (Duration::from_secs(1), Duration::from_secs(60));
        let limited = Language { timeout: Some(second), max_output: Some(Size::from_bytes(9)), ..language() };
        let exec = interpreter_command(&limited, code("1")).unwrap();
        assert_eq!((exec.timeout, exec.output.limit), (Some(second), 9));
        let mut own = code("1");
        (own.exec.timeout, own.limited) = (Some(minute), true);
        let exec = interpreter_command(&limited, own).unwrap();
        assert_eq!((exec.timeout, exec.output.limit), (Some(minute), 7));
    }
}

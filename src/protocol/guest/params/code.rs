//! Of `sandbox.run_code`.

use std::collections::BTreeMap;

use sandboxd_actors::domain::ids::ChatId;
use serde::Deserialize;

use super::{OnDisconnect, environment, output, plain_path, user};
use crate::protocol::error::Error;
use crate::protocol::fields::{duration, required};
use crate::protocol::guest::{Code, Exec, GuestRequest, Input};
use crate::protocol::request::Text;

const DEFAULT_LANGUAGE: &str = "python";

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RunCodeFields<'a> {
    #[serde(borrow)]
    chat_id: Option<Text<'a>>,
    language: Option<String>,
    code: Option<String>,
    user: Option<String>,
    cwd: Option<String>,
    env: Option<BTreeMap<String, String>>,
    stdin: Option<String>,
    timeout: Option<f64>,
    max_output: Option<u64>,
    stream: Option<bool>,
    on_disconnect: Option<OnDisconnect>,
}

impl RunCodeFields<'_> {
    pub(super) fn checked(self) -> Result<(ChatId, GuestRequest), Error> {
        let source = self.code.ok_or_else(|| Error::invalid_params("code", "is required"))?;
        if source.contains('\0') {
            return Err(Error::invalid_params("code", "must not contain a null character"));
        }
        let exec = Exec {
            arguments: Vec::new(),
            user: self.user.map(user).transpose()?,
            directory: self.cwd.map(|cwd| plain_path("cwd", cwd)).transpose()?,
            environment: environment(self.env)?,
            input: self.stdin.map_or(Input::None, |text| Input::Whole(text.into_bytes())),
            timeout: duration("timeout", self.timeout)?,
            output: output(self.stream, self.max_output, self.on_disconnect)?,
            terminal: None,
            detached: false,
            sync: false,
        };
        let language = self.language.unwrap_or_else(|| DEFAULT_LANGUAGE.to_owned());
        let code = Code { language, source, exec, limited: self.max_output.is_some() };
        Ok((required("chat_id", self.chat_id)?, GuestRequest::RunCode(Box::new(code))))
    }
}

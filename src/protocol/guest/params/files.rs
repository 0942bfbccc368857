//! Of what is about files and trees.

use sandboxd_actors::domain::ids::ChatId;
use serde::Deserialize;

use super::{checked_path, either};
use crate::protocol::error::Error;
use crate::protocol::fields::{fields, required};
use crate::protocol::guest::{Encoded, GuestRequest, MAX_READ};
use crate::protocol::method::Method;
use crate::protocol::request::Text;

/// `None`: the method is not about them.
pub(super) fn parse(method: Method, params: &str) -> Result<Option<(ChatId, GuestRequest)>, Error> {
    Ok(Some(match method {
        Method::SandboxReadFile => fields::<ReadFileFields<'_>>(params)?.checked()?,
        Method::SandboxWriteFile => fields::<WriteFileFields<'_>>(params)?.checked()?,
        Method::SandboxListFiles => {
            let PathFields { chat_id, path } = fields(params)?;
            (required("chat_id", chat_id)?, GuestRequest::ListFiles { path: checked_path("path", path)? })
        }
        Method::SandboxStatFile => {
            let PathFields { chat_id, path } = fields(params)?;
            (required("chat_id", chat_id)?, GuestRequest::StatFile { path: checked_path("path", path)? })
        }
        Method::SandboxMakeDirectory => fields::<MakeDirectoryFields<'_>>(params)?.checked()?,
        Method::SandboxRemoveFile => {
            let RemoveFields { chat_id, path, recursive } = fields(params)?;
            let recursive = recursive.unwrap_or_default();
            (required("chat_id", chat_id)?, GuestRequest::RemoveFile { path: checked_path("path", path)?, recursive })
        }
        Method::SandboxMoveFile => {
            let MoveFields { chat_id, from, to } = fields(params)?;
            let (from, to) = (checked_path("from", from)?, checked_path("to", to)?);
            (required("chat_id", chat_id)?, GuestRequest::MoveFile { from, to })
        }
        Method::SandboxReadTree => {
            let PathFields { chat_id, path } = fields(params)?;
            (required("chat_id", chat_id)?, GuestRequest::ReadTree { path: checked_path("path", path)? })
        }
        Method::SandboxWriteTree => {
            let WriteTreeFields { chat_id, path, parents } = fields(params)?;
            let (path, parents) = (checked_path("path", path)?, parents.unwrap_or_default());
            (required("chat_id", chat_id)?, GuestRequest::WriteTree { path, parents })
        }
        _ => return Ok(None),
    }))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ReadFileFields<'a> {
    #[serde(borrow)]
    chat_id: Option<Text<'a>>,
    path: Option<String>,
    offset: Option<u64>,
    length: Option<u64>,
    stream: Option<bool>,
}

impl ReadFileFields<'_> {
    fn checked(self) -> Result<(ChatId, GuestRequest), Error> {
        let stream = self.stream.unwrap_or_default();
        let length = match self.length {
            None if stream => u64::MAX,
            None => MAX_READ,
            Some(length) if stream || length <= MAX_READ => length,
            Some(length) => {
                let message = format!("must be at most {MAX_READ} unless it is streamed, got {length}");
                return Err(Error::invalid_params("length", message));
            }
        };
        let path = checked_path("path", self.path)?;
        let offset = self.offset.unwrap_or_default();
        if i64::try_from(offset).is_err() {
            return Err(Error::invalid_params("offset", format!("is beyond any file, got {offset}")));
        }
        Ok((required("chat_id", self.chat_id)?, GuestRequest::ReadFile { path, offset, length, stream }))
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WriteFileFields<'a> {
    #[serde(borrow)]
    chat_id: Option<Text<'a>>,
    path: Option<String>,
    text: Option<String>,
    base64: Option<Encoded>,
    follows: Option<bool>,
    mode: Option<u32>,
    parents: Option<bool>,
}

impl WriteFileFields<'_> {
    fn checked(self) -> Result<(ChatId, GuestRequest), Error> {
        let content = either(("text", self.text), ("base64", self.base64))?;
        match (&content, self.follows.unwrap_or_default()) {
            (None, false) => return Err(Error::invalid_params("text", "or base64 or follows is required")),
            (Some(_), true) => return Err(Error::invalid_params("follows", "the content is given already")),
            _ => {}
        }
        let (path, mode) = (checked_path("path", self.path)?, permissions(self.mode)?);
        let parents = self.parents.unwrap_or_default();
        Ok((required("chat_id", self.chat_id)?, GuestRequest::WriteFile { path, content, mode, parents }))
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PathFields<'a> {
    #[serde(borrow)]
    chat_id: Option<Text<'a>>,
    path: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct MakeDirectoryFields<'a> {
    #[serde(borrow)]
    chat_id: Option<Text<'a>>,
    path: Option<String>,
    mode: Option<u32>,
    parents: Option<bool>,
}

impl MakeDirectoryFields<'_> {
    fn checked(self) -> Result<(ChatId, GuestRequest), Error> {
        let (path, mode) = (checked_path("path", self.path)?, permissions(self.mode)?);
        let parents = self.parents.unwrap_or_default();
        Ok((required("chat_id", self.chat_id)?, GuestRequest::MakeDirectory { path, mode, parents }))
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RemoveFields<'a> {
    #[serde(borrow)]
    chat_id: Option<Text<'a>>,
    path: Option<String>,
    recursive: Option<bool>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct MoveFields<'a> {
    #[serde(borrow)]
    chat_id: Option<Text<'a>>,
    from: Option<String>,
    to: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WriteTreeFields<'a> {
    #[serde(borrow)]
    chat_id: Option<Text<'a>>,
    path: Option<String>,
    parents: Option<bool>,
}

fn permissions(mode: Option<u32>) -> Result<Option<u32>, Error> {
    match mode {
        Some(mode) if mode > 0o7777 => {
            Err(Error::invalid_params("mode", format!("must be from 0 to {} (octal 7777), got {mode}", 0o7777)))
        }
        mode => Ok(mode),
    }
}

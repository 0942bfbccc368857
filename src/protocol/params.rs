//! From parameters to a call: every field is checked here, once, and a wrong one is named.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::str::FromStr;
use std::time::Duration;

use sandboxd_actors::environment::Environment;
use sandboxd_actors::ids::{AgentId, ChatId, ProfileName};
use serde::Deserialize;

use super::error::{Error, Kind};
use super::method::Method;
use super::request::Text;

/// What a caller asks for, as far as it can be checked without knowing this host.
#[derive(Debug, PartialEq)]
pub enum Call {
    Create(Create),
    Get(ChatId),
    List { after: Option<ChatId>, limit: usize },
    Delete(ChatId),
    Health,
    Info,
}

#[derive(Debug, PartialEq)]
pub struct Create {
    pub chat: ChatId,
    pub agent: AgentId,
    /// As the caller wrote it.
    pub volume: String,
    pub profile: Option<ProfileName>,
    pub environment: Environment,
    pub ttl: Option<Duration>,
    pub idle_timeout: Option<Duration>,
}

/// How many sandboxes one `sandbox.list` answers.
pub const DEFAULT_PAGE: usize = 100;
pub const MAX_PAGE: usize = 1000;

/// A year: beyond it, a number of seconds is more likely a mistake than a wish.
pub const MAX_DURATION: Duration = Duration::from_secs(365 * 24 * 60 * 60);

impl Call {
    pub fn parse(method: Method, params: Option<&str>) -> Result<Call, Error> {
        let params = params.unwrap_or("{}");
        match method {
            Method::SandboxCreate => fields::<CreateFields<'_>>(params)?.checked().map(Call::Create),
            Method::SandboxGet => fields::<ChatFields<'_>>(params)?.checked().map(Call::Get),
            Method::SandboxDelete => fields::<ChatFields<'_>>(params)?.checked().map(Call::Delete),
            Method::SandboxList => fields::<ListFields<'_>>(params)?.checked(),
            Method::SystemHealth => fields::<NoFields>(params).map(|NoFields {}| Call::Health),
            Method::SystemInfo => fields::<NoFields>(params).map(|NoFields {}| Call::Info),
        }
    }

    /// The chat it is about, if it is about one.
    pub fn chat(&self) -> Option<ChatId> {
        match self {
            Call::Create(create) => Some(create.chat),
            Call::Get(chat) | Call::Delete(chat) => Some(*chat),
            Call::List { .. } | Call::Health | Call::Info => None,
        }
    }
}

// Every field is optional to serde, so that a missing one is reported by the same means as a wrong one.

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct CreateFields<'a> {
    #[serde(borrow)]
    chat_id: Option<Text<'a>>,
    #[serde(borrow)]
    agent_id: Option<Text<'a>>,
    #[serde(borrow)]
    volume_host_path: Option<Text<'a>>,
    #[serde(borrow)]
    profile: Option<Text<'a>>,
    env: Option<BTreeMap<String, String>>,
    ttl: Option<f64>,
    idle_timeout: Option<f64>,
}

impl CreateFields<'_> {
    fn checked(self) -> Result<Create, Error> {
        Ok(Create {
            chat: required("chat_id", self.chat_id)?,
            agent: required("agent_id", self.agent_id)?,
            volume: required("volume_host_path", self.volume_host_path)?,
            profile: optional("profile", self.profile)?,
            environment: Environment::checked(self.env.unwrap_or_default())
                .map_err(|error| Error::invalid_params("env", error))?,
            ttl: duration("ttl", self.ttl)?,
            idle_timeout: duration("idle_timeout", self.idle_timeout)?,
        })
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ChatFields<'a> {
    #[serde(borrow)]
    chat_id: Option<Text<'a>>,
}

impl ChatFields<'_> {
    fn checked(self) -> Result<ChatId, Error> {
        required("chat_id", self.chat_id)
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ListFields<'a> {
    limit: Option<u64>,
    #[serde(borrow)]
    after: Option<Text<'a>>,
}

impl ListFields<'_> {
    fn checked(self) -> Result<Call, Error> {
        let limit = match self.limit {
            None => DEFAULT_PAGE,
            Some(limit) => usize::try_from(limit)
                .ok()
                .filter(|limit| (1..=MAX_PAGE).contains(limit))
                .ok_or_else(|| Error::invalid_params("limit", format!("must be from 1 to {MAX_PAGE}, got {limit}")))?,
        };
        Ok(Call::List { after: optional("after", self.after)?, limit })
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct NoFields {}

fn fields<'a, T: Deserialize<'a>>(params: &'a str) -> Result<T, Error> {
    // Serde would take an array for the fields in the order of their declaration, which is nothing to rely on.
    if !params.starts_with('{') {
        return Err(Kind::InvalidParams.error("params must be an object"));
    }
    // Tracking the path costs an allocation for each field, so it is done only once there is an error to explain.
    serde_json::from_str(params).map_err(|error| match explained::<T>(params) {
        Some((field, message)) => Error::invalid_params(&field, message),
        None => Kind::InvalidParams.error(error.to_string()),
    })
}

fn explained<'a, T: Deserialize<'a>>(params: &'a str) -> Option<(String, String)> {
    let error = serde_path_to_error::deserialize::<_, T>(&mut serde_json::Deserializer::from_str(params)).err()?;
    let message = error.inner().to_string();
    // The position counts from the beginning of the parameters, not of the line, and helps nobody.
    let message = message.rsplit_once(" at line ").map_or(message.as_str(), |(message, _)| message).to_owned();
    let field: String = error.path().to_string().chars().take(128).collect();
    (field != ".").then_some((field, message))
}

fn required<T>(field: &str, text: Option<Text<'_>>) -> Result<T, Error>
where
    T: FromStr,
    T::Err: Display,
{
    optional(field, text)?.ok_or_else(|| Error::invalid_params(field, "is required"))
}

fn optional<T>(field: &str, text: Option<Text<'_>>) -> Result<Option<T>, Error>
where
    T: FromStr,
    T::Err: Display,
{
    text.map(|Text(text)| text.parse()).transpose().map_err(|error| Error::invalid_params(field, error))
}

fn duration(field: &str, seconds: Option<f64>) -> Result<Option<Duration>, Error> {
    let Some(seconds) = seconds else { return Ok(None) };
    match Duration::try_from_secs_f64(seconds) {
        Ok(duration) if !duration.is_zero() && duration <= MAX_DURATION => Ok(Some(duration)),
        _ => {
            let most = MAX_DURATION.as_secs();
            Err(Error::invalid_params(field, format!("must be seconds above 0 and up to {most}, got {seconds}")))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    const CHAT: &str = "67e55044-10b1-426f-9247-bb680e5fe0c8";

    fn create(changes: Value) -> Result<Call, Error> {
        let mut params = json!({ "chat_id": CHAT, "agent_id": "a", "volume_host_path": "/v" });
        for (name, value) in changes.as_object().expect("an object") {
            params[name] = value.clone();
        }
        Call::parse(Method::SandboxCreate, Some(&params.to_string()))
    }

    fn named_field(result: Result<Call, Error>) -> String {
        let error = result.expect_err("refused");
        assert_eq!(error.kind, Kind::InvalidParams);
        error.details["field"].as_str().expect("a field").to_owned()
    }

    #[test]
    fn a_whole_create_is_understood() {
        let call = create(json!({ "profile": "py", "env": { "A": "1" }, "ttl": 0.5, "idle_timeout": 60 }));
        let Ok(Call::Create(create)) = call else { panic!("{call:?}") };
        assert_eq!(create.chat.to_string(), CHAT);
        assert_eq!(create.volume, "/v");
        assert_eq!(create.environment.iter().collect::<Vec<_>>(), [("A", "1")]);
        assert_eq!(
            (create.ttl, create.idle_timeout),
            (Some(Duration::from_millis(500)), Some(Duration::from_secs(60)))
        );
    }

    #[test]
    fn null_is_the_same_as_absent() {
        let nulls = json!({ "profile": null, "env": null, "ttl": null, "idle_timeout": null });
        assert_eq!(create(nulls), create(json!({})));
        assert_eq!(named_field(create(json!({ "agent_id": null }))), "agent_id");
    }

    #[test]
    fn every_wrong_field_is_named() {
        for (changes, field) in [
            (json!({ "chat_id": "x" }), "chat_id"),
            (json!({ "chat_id": 1 }), "chat_id"),
            (json!({ "agent_id": " " }), "agent_id"),
            (json!({ "agent_id": ["a"] }), "agent_id"),
            (json!({ "volume_host_path": {} }), "volume_host_path"),
            (json!({ "profile": "No Such" }), "profile"),
            (json!({ "profile": true }), "profile"),
            (json!({ "env": ["A=1"] }), "env"),
            (json!({ "env": { "A": 1 } }), "env.A"),
            (json!({ "env": { "A=B": "1" } }), "env"),
            (json!({ "env": { "AGENT_ID": "1" } }), "env"),
            (json!({ "ttl": "5m" }), "ttl"),
            (json!({ "ttl": 0 }), "ttl"),
            (json!({ "ttl": -1 }), "ttl"),
            (json!({ "ttl": 1e-12 }), "ttl"),
            (json!({ "ttl": 1e300 }), "ttl"),
            (json!({ "idle_timeout": 31_536_001 }), "idle_timeout"),
            (json!({ "snapshot_id": "s" }), "snapshot_id"),
            (json!({ "ttll": 5 }), "ttll"),
        ] {
            assert_eq!(named_field(create(changes.clone())), field, "{changes}");
        }
    }

    #[test]
    fn a_number_beyond_all_numbers_is_refused() {
        let params = format!(r#"{{"chat_id":"{CHAT}","agent_id":"a","volume_host_path":"/v","ttl":1e400}}"#);
        assert_eq!(named_field(Call::parse(Method::SandboxCreate, Some(&params))), "ttl");
    }

    #[test]
    fn parameters_are_given_by_name() {
        let by_position = format!(r#"["{CHAT}"]"#);
        for params in [by_position.as_str(), "[]", "1", r#""x""#] {
            let error = Call::parse(Method::SandboxGet, Some(params)).expect_err(params);
            assert_eq!(error.message, "params must be an object");
        }
    }

    #[test]
    fn methods_without_parameters_take_none() {
        assert_eq!(Call::parse(Method::SystemInfo, None), Ok(Call::Info));
        assert_eq!(Call::parse(Method::SystemHealth, Some("{}")), Ok(Call::Health));
        assert_eq!(named_field(Call::parse(Method::SystemInfo, Some(r#"{"x":1}"#))), "x");
    }

    #[test]
    fn a_page_has_its_bounds() {
        let list = |params: Value| Call::parse(Method::SandboxList, Some(&params.to_string()));
        assert_eq!(list(json!({})), Ok(Call::List { after: None, limit: DEFAULT_PAGE }));
        let after = Some(CHAT.parse().expect("a UUID"));
        assert_eq!(list(json!({ "limit": 1000, "after": CHAT })), Ok(Call::List { after, limit: MAX_PAGE }));
        for limit in [json!(0), json!(1001), json!(-1), json!(1.5), json!("1"), json!(u64::MAX)] {
            assert_eq!(named_field(list(json!({ "limit": limit }))), "limit");
        }
        assert_eq!(named_field(list(json!({ "after": "x" }))), "after");
    }
}

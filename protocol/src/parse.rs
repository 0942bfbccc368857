//! Parsing of parameters into their type, with errors that name the field.

use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use crate::error::{Error, ErrorKind};

/// Longest path of a field in an error, in characters.
const MAX_FIELD: usize = 128;

/// Parses the JSON text of parameters. The error is `invalid_params` and names the field.
pub fn params<T: DeserializeOwned>(json: &str) -> Result<T, Error> {
    // Serde accepts an array as the fields in the order of their declaration, which callers must not rely on.
    if !json.starts_with('{') {
        return Err(ErrorKind::InvalidParams.error("params must be an object"));
    }
    // Tracking the path costs an allocation for each field, so only an error is parsed again with it.
    serde_json::from_str(json).map_err(|error| match explain::<T>(json) {
        Some((field, message)) => Error::invalid_params(&field, message),
        None => ErrorKind::InvalidParams.error(error.to_string()),
    })
}

/// Returns the path of the field that cannot be parsed, and the reason.
fn explain<T: DeserializeOwned>(json: &str) -> Option<(String, String)> {
    let error = serde_path_to_error::deserialize::<_, T>(&mut serde_json::Deserializer::from_str(json)).err()?;
    let message = error.inner().to_string();
    // The position counts from the beginning of the parameters instead of the line, so it would mislead.
    let message = message.rsplit_once(" at line ").map_or(message.as_str(), |(message, _)| message);
    let path = Some(error.path().to_string()).filter(|path| path != ".");
    let missing = message.strip_prefix("missing field `").and_then(|rest| rest.strip_suffix('`'));
    let (field, message) = match (path, missing) {
        (Some(path), Some(name)) => (format!("{path}.{name}"), "is required"),
        (None, Some(name)) => (name.to_owned(), "is required"),
        // A parameter that is null counts as absent.
        (Some(path), None) if is_null(json, &path) => (path, "is required"),
        (Some(path), None) => (path, message),
        (None, None) => return None,
    };
    Some((field.chars().take(MAX_FIELD).collect(), message.to_owned()))
}

/// Returns whether the parameter is null.
fn is_null(json: &str, name: &str) -> bool {
    serde_json::from_str::<Map<String, Value>>(json).is_ok_and(|params| params.get(name).is_some_and(Value::is_null))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::ExecParams;
    use crate::empty::NoParams;
    use crate::sandbox::{CreateParams, ListParams};
    use serde_json::json;

    fn refusal<T: DeserializeOwned + std::fmt::Debug>(json: &str) -> (Option<String>, String) {
        let error = params::<T>(json).expect_err(json);
        assert_eq!((error.data.kind, error.code), (ErrorKind::InvalidParams, -32602));
        (error.data.details.get("field").and_then(Value::as_str).map(str::to_owned), error.message)
    }

    fn create(changes: Value) -> String {
        let mut params = json!({ "chat_id": "c", "agent_id": "a" });
        for (name, value) in changes.as_object().unwrap() {
            params[name] = value.clone();
        }
        params.to_string()
    }

    #[test]
    fn a_wrong_field_is_named() {
        for (changes, field, message) in [
            (json!({ "chat_id": 1 }), "chat_id", "invalid type: integer `1`, expected a string"),
            (json!({ "env": { "A": 1 } }), "env.A", "invalid type: integer `1`, expected a string"),
            (json!({ "env": { "A": null } }), "env.A", "invalid type: null, expected a string"),
            (json!({ "ttl": "5m" }), "ttl", "invalid type: string \"5m\", expected f64"),
            (json!({ "chat_id": null }), "chat_id", "is required"),
            (json!({ "git": { "name": "n" } }), "git.email", "is required"),
            (
                json!({ "sync": { "command": 1 } }),
                "sync.command",
                "expected a line for the shell, or an array of arguments",
            ),
        ] {
            let named = (Some(field.to_owned()), format!("{field}: {message}"));
            assert_eq!(refusal::<CreateParams>(&create(changes)), named);
        }
        let unknown = refusal::<CreateParams>(&create(json!({ "ttll": 5 })));
        assert_eq!(unknown.0.as_deref(), Some("ttll"));
        assert!(unknown.1.starts_with("ttll: unknown field `ttll`, expected one of `chat_id`, "), "{}", unknown.1);
    }

    #[test]
    fn a_missing_field_is_required() {
        let agent = (Some("agent_id".to_owned()), "agent_id: is required".to_owned());
        assert_eq!(refusal::<CreateParams>(r#"{"chat_id":"c"}"#), agent);
        let command = (Some("command".to_owned()), "command: is required".to_owned());
        assert_eq!(refusal::<ExecParams>(r#"{"chat_id":"c"}"#), command);
        assert_eq!(refusal::<ExecParams>(r#"{"chat_id":"c","command":null}"#), command);
    }

    #[test]
    fn an_optional_field_that_is_null_is_absent() {
        let nulls = create(json!({ "env": null, "ttl": null, "sync": null, "profile": null }));
        assert_eq!(params::<CreateParams>(&nulls), params::<CreateParams>(&create(json!({}))));
    }

    #[test]
    fn parameters_are_given_by_name() {
        for json in ["[]", "1", r#""x""#, r#"["c","a"]"#] {
            assert_eq!(refusal::<CreateParams>(json), (None, "params must be an object".to_owned()));
        }
        assert_eq!(params::<NoParams>("{}"), Ok(NoParams {}));
        assert_eq!(refusal::<NoParams>(r#"{"x":1}"#).0.as_deref(), Some("x"));
    }

    #[test]
    fn an_unknown_word_is_refused_with_the_known_ones() {
        let (field, message) = refusal::<ListParams>(r#"{"status":"asleep"}"#);
        assert_eq!(field.as_deref(), Some("status"));
        assert!(message.starts_with("status: unknown variant `asleep`, expected one of `creating`, "), "{message}");
    }
}

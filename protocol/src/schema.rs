//! One JSON Schema document of the whole protocol.

use std::collections::BTreeMap;

use schemars::generate::SchemaSettings;
use schemars::transform::RecursiveTransform;
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::Serialize;
use serde_json::{Map, Value};

use crate::VERSION;
use crate::error::{Error, ErrorKind, LimitKey, StartFailureCause};
use crate::file::FileReason;
use crate::method::Method;
use crate::notification::Notification;
use crate::text::unwrap;

/// JSON Schema document (2020-12) of the protocol: the schemas of all types, and the tables that refer to them.
#[derive(Debug, Clone, Serialize)]
pub struct Document {
    #[serde(rename = "$schema")]
    dialect: &'static str,
    title: &'static str,
    description: &'static str,
    /// Version of the protocol.
    version: u32,
    methods: Vec<MethodEntry>,
    notifications: Vec<NotificationEntry>,
    errors: Vec<ErrorEntry>,
    #[serde(rename = "$defs")]
    definitions: Map<String, Value>,
}

/// A method in the document.
#[derive(Debug, Clone, Serialize)]
struct MethodEntry {
    name: &'static str,
    summary: &'static str,
    #[serde(skip_serializing_if = "String::is_empty")]
    description: String,
    role: &'static str,
    params: Schema,
    result: Schema,
    notifications: Vec<&'static str>,
    errors: Vec<&'static str>,
}

/// A notification in the document.
#[derive(Debug, Clone, Serialize)]
struct NotificationEntry {
    method: &'static str,
    summary: &'static str,
    params: Schema,
}

/// A kind of errors in the document.
#[derive(Debug, Clone, Serialize)]
struct ErrorEntry {
    kind: &'static str,
    code: i32,
    /// Unless the answer says otherwise.
    retryable: bool,
    description: &'static str,
    details: BTreeMap<&'static str, &'static str>,
}

/// Builds the document.
pub fn document() -> Document {
    // As the sender of a message writes it: a result contains every field, and a parameter that may be absent is optional.
    let mut generator = SchemaSettings::draft2020_12()
        .for_serialize()
        .with_transform(RecursiveTransform(unwrap_description))
        .into_generator();
    let methods = Method::ALL.map(|method| MethodEntry::new(method, &mut generator)).into();
    let notifications =
        Notification::ALL.map(|notification| NotificationEntry::new(notification, &mut generator)).into();
    define::<Error>(&mut generator);
    define::<StartFailureCause>(&mut generator);
    define::<LimitKey>(&mut generator);
    define::<FileReason>(&mut generator);
    Document {
        dialect: "https://json-schema.org/draft/2020-12/schema",
        title: "sandboxd protocol",
        description: "JSON-RPC 2.0 over a Unix socket, one message per line.",
        version: VERSION,
        methods,
        notifications,
        errors: ErrorKind::ALL.map(ErrorEntry::new).into(),
        definitions: generator.take_definitions(true),
    }
}

impl MethodEntry {
    fn new(method: Method, generator: &mut SchemaGenerator) -> Self {
        MethodEntry {
            name: method.name(),
            summary: method.summary(),
            description: method.description(),
            role: method.role().as_str(),
            params: method.params_schema(generator),
            result: method.result_schema(generator),
            notifications: method.streams().iter().map(|notification| notification.method()).collect(),
            errors: method.errors().iter().map(|kind| kind.as_str()).collect(),
        }
    }
}

impl NotificationEntry {
    fn new(notification: Notification, generator: &mut SchemaGenerator) -> Self {
        let params = notification.params_schema(generator);
        NotificationEntry { method: notification.method(), summary: notification.summary(), params }
    }
}

impl ErrorEntry {
    fn new(kind: ErrorKind) -> Self {
        ErrorEntry {
            kind: kind.as_str(),
            code: kind.code(),
            retryable: kind.is_retryable(),
            description: kind.description(),
            details: kind.details().iter().copied().collect(),
        }
    }
}

/// Adds a type that no method or notification refers to.
fn define<T: JsonSchema>(generator: &mut SchemaGenerator) {
    generator.subschema_for::<T>();
}

/// Joins the lines of a description, which are wrapped only in the source.
fn unwrap_description(schema: &mut Schema) {
    if let Some(Value::String(description)) = schema.get_mut("description") {
        *description = unwrap(description);
    }
}

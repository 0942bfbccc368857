//! Tables of fields and words, from the schemas.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value};

use super::link;
use super::order::declaration;
use crate::file::File;
use crate::method::Method;
use crate::notification::Notification;
use crate::sandbox::{Hold, SyncParams};
use crate::schema;

/// Types that other types contain with all their fields.
const FLATTENED: [&str; 3] = ["Sandbox", "File", "CommandEnd"];

/// The schemas of all types.
pub(super) struct Types {
    definitions: Map<String, Value>,
    /// Fields in the order of their declaration, for types with optional fields.
    declared: BTreeMap<String, &'static [&'static str]>,
    params: BTreeMap<Method, String>,
    results: BTreeMap<Method, String>,
    /// Types that have no section of their own: their fields are in the section of a method or notification.
    inline: BTreeSet<String>,
}

impl Types {
    pub(super) fn new() -> Result<Types, serde_json::Error> {
        let document = serde_json::to_value(schema::document())?;
        let of_methods = |part: &str| -> BTreeMap<Method, String> {
            let entries = document["methods"].as_array().into_iter().flatten();
            let names = entries.map(|entry| reference(&entry[part]).unwrap_or_default().to_owned());
            Method::ALL.into_iter().zip(names).collect()
        };
        let (params, results) = (of_methods("params"), of_methods("result"));
        let declared = Method::ALL.map(Method::params_declaration).into_iter();
        let declared = declared.chain(Notification::ALL.map(Notification::params_declaration));
        let declared = declared.chain([declaration::<SyncParams>(), declaration::<Hold>(), declaration::<File>()]);
        let declared = declared.map(|(name, fields)| (name.into_owned(), fields)).collect();

        let mut uses = BTreeMap::new();
        count_uses(&document, &mut uses);
        let single_results = results.values().filter(|name| uses.get(*name) == Some(&1));
        let notifications = Notification::ALL.map(|notification| notification.params_declaration().0.into_owned());
        let special = ["Empty", "ErrorKind"].map(str::to_owned);
        let inline = params.values().chain(single_results).cloned().chain(notifications).chain(special).collect();
        let definitions = document["$defs"].as_object().cloned().unwrap_or_default();
        Ok(Types { definitions, declared, params, results, inline })
    }

    /// Returns the parameters of a method.
    pub(super) fn params(&self, method: Method) -> String {
        let name = &self.params[&method];
        match self.fields(name).is_empty() {
            true => "\n**Parameters**: none\n".to_owned(),
            false => format!("\n**Parameters**{}\n\n{}", self.introduction(name), self.table(name)),
        }
    }

    /// Returns the result of a method.
    pub(super) fn result(&self, method: Method) -> String {
        let name = &self.results[&method];
        if name == "Empty" {
            return "\n**Result**: `{}`\n".to_owned();
        }
        if !self.inline.contains(name) {
            return format!("\n**Result**: {}\n", link(name));
        }
        match self.choices(name) {
            Some(choices) => format!("\n**Result**: one of\n\n{choices}"),
            None => format!("\n**Result**{}\n\n{}", self.introduction(name), self.table(name)),
        }
    }

    /// Returns the rows of the parameters of a notification, without their first column and the id.
    pub(super) fn notification_rows(&self, notification: Notification) -> Vec<String> {
        let name = notification.params_declaration().0;
        let fields = self.fields(&name).into_iter().filter(|field| *field != "id");
        let rows = fields.map(|field| {
            let property = &self.definitions[&*name]["properties"][field];
            format!("| `{field}` | {} | {} |", kind(property, true), description(property))
        });
        rows.collect()
    }

    /// Returns the sections of the types that are not words.
    pub(super) fn objects(&self) -> String {
        let mut text = String::new();
        for (name, definition) in self.shown().filter(|(_, definition)| definition.get("oneOf").is_none()) {
            text += &format!("\n### `{name}`\n\n{}\n\n", description(definition));
            text += &self.choices(name).unwrap_or_else(|| self.table(name));
        }
        text
    }

    /// Returns the sections of the words. A further column has the name and value that the function returns.
    pub(super) fn words(&self, further: impl Fn(&str, &str) -> Option<(&'static str, &'static str)>) -> String {
        let mut text = String::new();
        for (name, definition) in self.shown() {
            let Some(words) = definition["oneOf"].as_array() else { continue };
            let of = |word: &Value| word["const"].as_str().unwrap_or_default().to_owned();
            let column = words.first().and_then(|word| further(name, &of(word)));
            text += &format!("\n### `{name}`\n\n{}\n\n", description(definition));
            text += &match column {
                Some((column, _)) => format!("| word | {column} | meaning |\n|---|---|---|\n"),
                None => "| word | meaning |\n|---|---|\n".to_owned(),
            };
            for word in words {
                let value = further(name, &of(word)).map_or_else(String::new, |(_, value)| format!(" {value} |"));
                text += &format!("| `{}` |{value} {} |\n", of(word), description(word));
            }
        }
        text
    }

    /// Turns the quoted names of types into links.
    pub(super) fn with_links(&self, text: &str) -> String {
        let quoted = |(number, part): (usize, &str)| match number % 2 {
            1 if self.definitions.contains_key(part) => link(part),
            1 => format!("`{part}`"),
            _ => part.to_owned(),
        };
        text.split('`').enumerate().map(quoted).collect()
    }

    /// Returns the types with a section of their own.
    fn shown(&self) -> impl Iterator<Item = (&String, &Value)> {
        self.definitions.iter().filter(|(name, _)| !self.inline.contains(*name))
    }

    /// Returns the alternatives of a type that is one of several.
    fn choices(&self, name: &str) -> Option<String> {
        let choices = self.definitions[name]["anyOf"].as_array()?;
        Some(choices.iter().map(|choice| format!("- {}: {}\n", kind(choice, true), description(choice))).collect())
    }

    /// Returns the part of a description that says more than which method the type belongs to.
    fn introduction(&self, name: &str) -> String {
        let text = description(&self.definitions[name]);
        let is_own = text.starts_with("Parameters of") || text.starts_with("Result of");
        let rest = text.split_once("`: ").or_else(|| text.split_once(". ")).filter(|_| is_own);
        let rest = rest.map_or("", |(_, rest)| rest);
        if rest.is_empty() { String::new() } else { format!(": {rest}") }
    }

    /// Returns the names of the fields, in the order of their declaration.
    fn fields(&self, name: &str) -> Vec<&str> {
        let definition = &self.definitions[name];
        let Some(properties) = definition["properties"].as_object() else { return Vec::new() };
        if let Some(declared) = self.declared.get(name).filter(|declared| !declared.is_empty()) {
            return declared.to_vec();
        }
        let required: Vec<_> =
            definition["required"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
        let optional = properties.keys().map(String::as_str).filter(|field| !required.contains(field));
        required.iter().copied().chain(optional).collect()
    }

    /// Returns the table of the fields of a type.
    fn table(&self, name: &str) -> String {
        let definition = &self.definitions[name];
        let is_param = definition["additionalProperties"] == false;
        let required = definition["required"].as_array();
        let is_required = |field: &str| required.is_some_and(|names| names.iter().any(|name| name == field));
        let base = FLATTENED.into_iter().find(|base| *base != name && self.contains(name, base));
        let mut text = base.map_or_else(String::new, |base| format!("All fields of {}, and:\n\n", link(base)));
        text += if is_param {
            "| field | type | default | meaning |\n|---|---|---|---|\n"
        } else {
            "| field | type | meaning |\n|---|---|---|\n"
        };
        for field in self.fields(name) {
            let property = &definition["properties"][field];
            if base.is_some_and(|base| self.definitions[base]["properties"].get(field).is_some()) {
                continue;
            }
            let meaning = description(property);
            if is_param {
                let (meaning, default) = meaning.split_once("Default: ").unwrap_or((meaning, "none"));
                let default = if is_required(field) { "required" } else { default.trim_end_matches('.') };
                let meaning = meaning.trim_end();
                text += &format!("| `{field}` | {} | {default} | {meaning} |\n", kind(property, false));
            } else {
                text += &format!("| `{field}` | {} | {meaning} |\n", kind(property, true));
            }
        }
        text
    }

    /// Returns whether a type has all fields of another type.
    fn contains(&self, name: &str, base: &str) -> bool {
        let properties = |name: &str| self.definitions[name]["properties"].as_object();
        properties(name)
            .zip(properties(base))
            .is_some_and(|(own, base)| base.iter().all(|(field, property)| own.get(field) == Some(property)))
    }
}

/// Returns the name of the type that a schema refers to.
fn reference(schema: &Value) -> Option<&str> {
    schema["$ref"].as_str()?.strip_prefix("#/$defs/")
}

fn description(schema: &Value) -> &str {
    schema["description"].as_str().unwrap_or_default()
}

/// Returns the type of a field in words. A parameter that is null counts as absent, so its null is not shown.
fn kind(schema: &Value, with_null: bool) -> String {
    if let Some(name) = reference(schema) {
        return if name == "ErrorKind" { "[`ErrorKind`](#errors)".to_owned() } else { link(name) };
    }
    let null = if with_null { " or null" } else { "" };
    if let Some([of, Value::Object(_)]) = schema["anyOf"].as_array().map(Vec::as_slice) {
        return format!("{}{null}", kind(of, with_null));
    }
    let names: Vec<_> = match &schema["type"] {
        Value::Array(names) => names.iter().filter_map(Value::as_str).collect(),
        name => name.as_str().into_iter().collect(),
    };
    let null = if names.contains(&"null") { null } else { "" };
    let format = schema["format"].as_str();
    let name = match names.first().copied() {
        Some("string") if format == Some("date-time") => "time".to_owned(),
        Some("array") => match kind(&schema["items"], true).as_str() {
            "string" => "array of strings".to_owned(),
            items => format!("array of {items}"),
        },
        Some("object") if schema["additionalProperties"]["type"] == "string" => "object of strings".to_owned(),
        Some(name) => name.to_owned(),
        None => "any".to_owned(),
    };
    let bound = |name: &str| schema.get(name).filter(|bound| bound.as_f64() != Some(0.0));
    let range = match (bound("minimum"), bound("maximum")) {
        (Some(least), Some(most)) => format!(", {least} to {most}"),
        (Some(least), None) => format!(", at least {least}"),
        (None, Some(most)) => format!(", at most {most}"),
        (None, None) => String::new(),
    };
    format!("{name}{null}{range}")
}

/// Counts the references to each type.
fn count_uses(value: &Value, uses: &mut BTreeMap<String, usize>) {
    match value {
        Value::Object(fields) => {
            if let Some(name) = reference(value) {
                *uses.entry(name.to_owned()).or_default() += 1;
            }
            fields.values().for_each(|value| count_uses(value, uses));
        }
        Value::Array(values) => values.iter().for_each(|value| count_uses(value, uses)),
        _ => {}
    }
}

//! Sandboxes that a test keeps from becoming ready for as long as it needs.

use crate::create_params::CreateParams;

/// The settings of a sandbox that is ready once its gate is open.
pub(crate) const GATED: &str = "
    [profiles.default]
    command = ['sh', '-c', 'until [ -e /volume/go ]; do sleep 0.05; done; exec httpd -f -p 8080 -h /www']
    readiness = { kind = 'http' }
";

pub(crate) fn open_gate(chat: &CreateParams) {
    std::fs::write(chat.volume().join("go"), "").expect("written");
}
